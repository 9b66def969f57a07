"""Free TCP ports, what is reached without a proxy, whose certificates are believed, and how long
answers stay in memory.

HTTP_PROXY, HTTPS_PROXY and ALL_PROXY are for the outside and stay as they are; NO_PROXY gets the
addresses of this machine and of the stack in addition to what is in it. Programs read either
spelling, so both are set.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infra.access import is_here

if TYPE_CHECKING:
    import ssl

    import httpx

# Below the kernel's ephemeral range, so no outgoing connection takes one between choice and use;
# above Ray's default worker range, so another person's Ray does not either.
_LOWEST, _HIGHEST = 20_000, 32_000
_DRAW = random.SystemRandom()
"""no seed reaches it: two processes that set one alike would choose the same ports at once"""
_BYPASS = ("NO_PROXY", "no_proxy")
_HERE = ("127.0.0.1", "localhost", "::1")
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "ws_proxy", "wss_proxy"})


def is_free(port: int) -> bool:
    """Return whether a server could listen there now, on any address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_ports(count: int, avoid: Collection[int] = ()) -> list[int]:
    """`count` different free ports, none of them in `avoid`."""
    found: list[int] = []
    for port in _DRAW.sample(range(_LOWEST, _HIGHEST), _HIGHEST - _LOWEST):
        if len(found) == count:
            break
        if port not in avoid and is_free(port):
            found.append(port)
    return found


@cache
def certificates() -> ssl.SSLContext:
    """Return the certificates for `verify` of httpx, which else reads those of all authorities for
    each of its clients, and for each call without a client: that takes 30 ms of a processor."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


def loosed(reply: httpx.Response) -> httpx.Response:
    """Return an answer that was read, whose memory ends with its last use. httpx binds each one and
    its stream to each other, so they would stay until Python looks for such circles, which in a
    large process is seldom: it counts objects, and not their bytes."""
    import httpx

    reply.stream = httpx.ByteStream(b"")
    return reply


def bypass_env(*hosts: str) -> dict[str, str]:
    """NO_PROXY for programs that talk to this machine and to `hosts`."""
    given = ",".join(os.environ.get(name, "") for name in _BYPASS).split(",")
    wanted = dict.fromkeys(host for each in (*given, *_HERE, *hosts) if (host := each.strip()))
    text = "*" if "*" in wanted else ",".join(wanted)
    return dict.fromkeys(_BYPASS, text)


def bypass(*hosts: str) -> None:
    """Bypass proxies for this process and what it starts."""
    os.environ.update(bypass_env(*hosts))


def unusable() -> list[str]:
    """Variables that name SOCKS proxies where httpx has no SOCKS: with them, Prefect's programs do
    not even reach a server for which there is no proxy."""
    if find_spec("socksio") is not None:
        return []
    return [name for name in _named() if os.environ[name].startswith("socks")]


def goes_by_proxies(url: str) -> bool:
    """Return whether a client of the server at this address reads the environment's proxies
    (`trust_env` of httpx): not if it is on this machine, nor where httpx would refuse to begin."""
    return not (is_here(urlsplit(url).hostname or "") or unusable())


def forget_proxies() -> None:
    """Forget proxies in a process that talks to our own servers only, whatever their addresses."""
    for name in _named():
        del os.environ[name]


def _named() -> list[str]:
    return [name for name in os.environ if name.lower() in _PROXIES]
