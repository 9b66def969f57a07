"""Which ports a stack takes, and what is refused."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from infra.access import prepare_key
from infra.errors import InputError
from infra.guard import strangers_at
from infra.processes.children import ProcessRecord, birth_of
from infra.processes.network import free_ports
from infra.stack import load_stack
from infra.stack.record import new_stack, save_record
from infra.stack.services import services
from infra.stack.stack_ports import PARTS, VARIABLE, choose_ports, fixed_ports

pytestmark = pytest.mark.unit


def test_each_part_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    chosen = choose_ports({})
    assert list(chosen) == list(PARTS)
    assert len(set(chosen.values())) == len(PARTS)


def test_a_port_is_kept_while_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        before = choose_ports({}) | {"mlflow": other.getsockname()[1]}
        after = choose_ports(before)
    assert {part for part in PARTS if before[part] != after[part]} == {"mlflow"}


def test_a_named_port_wins_over_the_one_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = choose_ports({})
    wanted = choose_ports(before)["ray_client"]
    monkeypatch.setenv(VARIABLE, f"prefect={wanted}")
    after = choose_ports(before)
    assert after["prefect"] == wanted
    assert len(set(after.values())) == len(PARTS)


def test_a_named_port_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv(VARIABLE, f"mlflow={port}")
        with pytest.raises(InputError, match=f"mlflow={port}: another program"):
            choose_ports({})


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("prefct=4200", "no part `prefct`.*Did you mean `prefect`"),
        ("prefect", "write prefect=PORT"),
        ("prefect=80", "1024 to 65535"),
        ("prefect=4200,mlflow=4200", "mlflow=4200: the port is given twice"),
    ],
)
def test_what_is_no_port_is_refused_by_name(written: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        fixed_ports(written)


def test_spaces_and_empty_entries_do_not_matter() -> None:
    assert fixed_ports(" prefect=4200, mlflow=5000, ") == {"prefect": 4200, "mlflow": 5000}
    assert fixed_ports("") == {}


_LISTENS = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
server.close()
os.setgid(65534); os.setuid(65534)
server = socket.create_server(("127.0.0.1", port))
print(port, flush=True)
server.settimeout(30)
client, _ = server.accept()
sys.stdout.write(client.recv(10_000).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which can be another user")
def test_a_program_of_another_user_at_a_port_of_the_stack_does_not_see_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may listen where a server ended, or before one that starts, whose port `ps` tells."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    prepare_key(in_use=False)
    stranger = subprocess.Popen([sys.executable, "-c", _LISTENS], stdout=subprocess.PIPE, text=True)
    try:
        assert stranger.stdout is not None
        port = int(stranger.stdout.readline())
        assert strangers_at({port, 1}) == {port: 65534}
        assert strangers_at({port}, "192.0.2.1") == {}, "another machine"
        stack = new_stack(None)
        stack.ports["mlflow"] = stack.ports["prefect"] = port
        stack.services["ray"] = ProcessRecord(
            pid=os.getpid(), birth=birth_of(os.getpid()), log=tmp_path / "log"
        )
        save_record(stack)
        with pytest.raises(InputError, match=f"number 65534.*port {port}, which is prefect's"):
            load_stack()
        for service in services(stack):
            if service.name in ("prefect-server", "prefect-worker"):
                assert not service.answers()
        with socket.create_connection(("127.0.0.1", port)) as last:
            last.sendall(b"nothing before")
        assert stranger.communicate(timeout=30)[0] == "nothing before"
    finally:
        stranger.kill()
        stranger.wait()
    with socket.create_server(("127.0.0.1", 0)) as ours:
        assert strangers_at({ours.getsockname()[1]}) == {}


def test_processes_that_set_one_seed_choose_unlike_ports() -> None:
    chosen: list[list[int]] = []
    for _ in range(2):
        random.seed(0)
        chosen.append(free_ports(8))
    assert chosen[0] != chosen[1]
