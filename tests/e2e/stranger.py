"""A stranger: somebody in another network, who knows this machine's addresses and no key, and what
such a person or another user of the machine asks for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from infra.processes.children import family
from infra.stack import Stack
from tests.e2e import requests_of_strangers
from tests.parts.machine import network

_CONNECT = """
import json, socket, sys
addresses, ports, reached = sys.argv[1].split(","), sys.argv[2:], []
for port in ports:
    for address in addresses:
        try:
            socket.create_connection((address, int(port)), timeout=5).close()
        except OSError:
            continue
        reached.append(int(port))
        break
print(json.dumps(reached))
"""
_GET = """
import http.client, json, sys
host, told = sys.argv[1], {}
for asked in sys.argv[2:]:
    port, path = asked.split("/", 1)
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("GET", "/" + path)
        reply = connection.getresponse()
        told[asked] = [reply.status, reply.read().decode(errors="replace")]
    except (OSError, http.client.HTTPException) as error:
        told[asked] = [0, repr(error)]
print(json.dumps(told))
"""


class Stranger:
    """Runs small programs in a network namespace of its own."""

    def __init__(self, name: str, host: str) -> None:
        self._name = name
        self.host = host
        """this machine, as seen from there"""

    def reaches(self, ports: Iterable[int]) -> set[int]:
        """Those that take a connection from there, on any of this machine's addresses."""
        return set(self._run(_CONNECT, ",".join(self.addresses()), *map(str, sorted(set(ports)))))

    def get(self, asked: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Status and body of `PORT/PATH` each, without a key; status 0 where it is no HTTP."""
        told = self._run(_GET, self.host, *asked)
        return {each: (status, body) for each, (status, body) in told.items()}

    def addresses(self) -> list[str]:
        """All of this machine that are not its loopback's."""
        known = [a.address for each in psutil.net_if_addrs().values() for a in each
                 if a.family.name == "AF_INET"]  # fmt: skip
        return [self.host, *(a for a in known if a != self.host and not a.startswith("127."))]

    def program(self, *arguments: str) -> list[str]:
        """A command that runs Python with these arguments there."""
        return ["ip", "netns", "exec", self._name, sys.executable, *arguments]

    def _run(self, program: str, *arguments: str) -> Any:
        command = self.program("-c", program, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        return json.loads(done.stdout)


def listening(stack: Stack) -> Iterator[int]:
    """Every port of the stack's processes, also those on loopback."""
    for process in family(stack.services.values(), stack.mark):
        with suppress(psutil.Error):  # it ended meanwhile
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.port


def asked_by_a_stranger(program: Sequence[str], there: dict[str, Any]) -> dict[str, Any]:
    """What a program that runs Python, as another user or elsewhere, got of what is there."""
    code = f"import runpy; runpy.run_path({requests_of_strangers.__file__!r}, run_name='__main__')"
    done = subprocess.run(
        [*program, code], input=json.dumps(there), capture_output=True, text=True, timeout=240,
        check=True, cwd="/",
    )  # fmt: skip
    return json.loads(done.stdout)


@contextmanager
def stranger() -> Generator[Stranger]:
    """Skips the test where this user may not make network namespaces."""
    if shutil.which("ip") is None:
        pytest.skip("no `ip` here (iproute2): it makes the network that the scan comes from")
    name, part = f"tributary-{os.getpid()}", os.getpid() % 64
    here, link = f"198.18.{part}.1", f"tr{os.getpid()}"
    steps = (
        f"ip netns add {name}",
        f"ip link add {link} type veth peer name {link}s netns {name}",
        f"ip addr add {here}/30 dev {link}",
        f"ip link set {link} up",
        f"ip -n {name} addr add 198.18.{part}.2/30 dev {link}s",
        f"ip -n {name} link set {link}s up",
        f"ip -n {name} link set lo up",
        f"ip -n {name} route add default via {here}",
    )
    with network(is_changed=True):
        try:
            for step in steps:
                done = subprocess.run(step.split(), capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.skip(f"no network namespaces here: `{step}`: {done.stderr.strip()}")
            yield Stranger(name, here)
        finally:
            for step in (f"ip link del {link}", f"ip netns del {name}"):
                subprocess.run(step.split(), capture_output=True, check=False)
