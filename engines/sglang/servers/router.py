"""An sglang-router process and its set of servers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import cast

from engines.devices.child_processes import ChildProcesses, log_tail
from engines.sglang.http import Refused, call
from engines.sglang.servers.router_main import KEY_VARIABLE
from infra.access import LOOPBACK, key_of, listening_host, reachable
from infra.errors import EngineError
from infra.processes.network import free_ports

START_S = 180.0
_CHANGE_S = 30.0
_CONTROL_S = 10.0
_KEY_S = 1800
"""after which a routing key that nobody used is forgotten"""
_WRONG_KEY = (401, 403)
_NO_FLAGS: Mapping[str, object] = {}


class Router:
    """A running router. `set_servers` sets the servers that get requests; none at first."""

    def __init__(
        self,
        children: ChildProcesses,
        name: str,
        host: str = "",
        *,
        port: int = 0,
        flags: Mapping[str, object] = _NO_FLAGS,
        key: str = "",
    ) -> None:
        """Start it; returns before it is ready. It listens where this home's servers do, or on
        `host`; on any free port, or on `port`; it asks for this home's key, or for `key`, and hands
        on to servers what it got. `flags` of the router's own go before ours; None is the value of
        one that takes none, and a list has the values of one that is repeated."""
        self.name = name
        self.log = children.logs / f"{name}.log"
        self._children = children
        self._host, self._port = host or listening_host(), port or free_ports(1)[0]
        environment = {KEY_VARIABLE: key} if key else {}
        self.pid = children.run(self._command(flags), self.log, environment)

    def _command(self, changed: Mapping[str, object]) -> list[str]:
        flags: dict[str, object] = {
            "--host": self._host,
            "--port": self._port,
            "--prometheus-host": LOOPBACK,
            "--prometheus-port": free_ports(1, avoid={self._port})[0],
            # requests with one routing key go to one server; a new key to the least busy one
            "--policy": "manual",
            "--assignment-mode": "min_load",
            "--max-idle-secs": _KEY_S,
            "--log-level": "warn",
            "--worker-startup-check-interval": 1,
            "--health-check-interval-secs": 2,
            "--health-failure-threshold": 2,
            "--health-success-threshold": 1,
            # a batch may take long on a slow host; its caller has a bound of its own
            "--request-timeout-secs": 3600,
        }
        words = router_words(flags | dict(changed))
        return [sys.executable, "-m", "engines.sglang.servers.router_main", *words]

    @property
    def url(self) -> str:
        return f"http://{reachable(self._host)}:{self._port}"

    @property
    def is_alive(self) -> bool:
        return self._children.exit_code(self.pid) is None

    def wait_ready(self, timeout: float = START_S) -> None:
        """Return when it answers; raises EngineError with the log's end if it does not."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                call(self.url, "/workers", timeout=2.0)
                return
            except Refused as error:
                if error.status in _WRONG_KEY:
                    raise
            except EngineError:
                if not self.is_alive:
                    break
            time.sleep(0.03)
        raise EngineError(
            f"router {self.name} did not start in {timeout:.0f} s; the end of {self.log}:\n"
            f"{log_tail(self.log)}"
        )

    def servers(self) -> dict[str, bool]:
        """URL of each server it knows, and whether the router thinks it healthy."""
        reply = call(self.url, "/workers", timeout=_CONTROL_S)
        return {worker["url"]: worker["is_healthy"] for worker in reply["workers"]}

    def set_servers(self, urls: Iterable[str], timeout: float = _CHANGE_S) -> None:
        """Route to exactly `urls`; returns when all of them take requests and no other does."""
        wanted = set(urls)
        reply = call(self.url, "/workers", timeout=_CONTROL_S)
        ids = {worker["url"]: worker["id"] for worker in reply["workers"]}
        for url in ids.keys() - wanted:
            call(self.url, f"/workers/{ids[url]}", method="DELETE", timeout=_CONTROL_S)
        for url in wanted - ids.keys():
            # Servers that come later do not get the router's own key by themselves.
            asked = key_of(url)
            worker = {"url": url} | ({"api_key": asked} if asked else {})
            call(self.url, "/workers", worker, timeout=_CONTROL_S)
        deadline = time.monotonic() + timeout
        while (now := self.servers()) != dict.fromkeys(wanted, True):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"router {self.name} has servers {now} after {timeout:.0f} s, wanted"
                    f" {sorted(wanted)}; the end of {self.log}:\n{log_tail(self.log)}"
                )
            time.sleep(0.01)

    def stop(self) -> None:
        self._children.stop(self.pid)


def router_words(flags: Mapping[str, object]) -> list[str]:
    """Example: {"--port": 1, "--decode": [("a",), ("b",)]} -> [--port, 1, --decode, a, --decode,
    b]"""
    return [word for flag, value in flags.items() for word in _words(flag, value)]


def _words(flag: str, value: object) -> list[str]:
    if value is None:
        return [flag]
    if isinstance(value, list):
        given = cast("list[tuple[object, ...]]", value)
        return [word for parts in given for word in (flag, *map(str, parts))]
    return [flag, str(value)]
