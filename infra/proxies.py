"""Proxies of the environment are for the outside: what runs here is reached without them.

HTTP_PROXY, HTTPS_PROXY and ALL_PROXY stay as they are; NO_PROXY gets the addresses of this machine
and of the stack in addition to what is in it. Programs read either spelling, so both are set.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

_BYPASS = ("NO_PROXY", "no_proxy")
_HERE = ("127.0.0.1", "localhost", "::1")
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "ws_proxy", "wss_proxy"})


def bypass_env(*hosts: str) -> dict[str, str]:
    """NO_PROXY for programs that talk to this machine and to `hosts`."""
    given = ",".join(os.environ.get(name, "") for name in _BYPASS).split(",")
    wanted = dict.fromkeys(host for each in (*given, *_HERE, *hosts) if (host := each.strip()))
    text = "*" if "*" in wanted else ",".join(wanted)
    return dict.fromkeys(_BYPASS, text)


def bypass(*hosts: str) -> None:
    """The same for this process and what it starts."""
    os.environ.update(bypass_env(*hosts))


def unusable() -> list[str]:
    """Variables that name SOCKS proxies where httpx has no SOCKS: with them, Prefect's programs do
    not even reach a server for which there is no proxy."""
    if find_spec("socksio") is not None:
        return []
    return [name for name in _named() if os.environ[name].startswith("socks")]


def forget_proxies() -> None:
    """For a process that talks to our own servers only, whatever their addresses."""
    for name in _named():
        del os.environ[name]


def _named() -> list[str]:
    return [name for name in os.environ if name.lower() in _PROXIES]
