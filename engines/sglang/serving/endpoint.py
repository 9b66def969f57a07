"""OpenAI's API for one or several models: each has servers behind a router of its own.

client ── router (HOST:PORT, with the key) ── servers (loopback, no key)         one model
client ── gateway (HOST:PORT, with the key) ─┬─ router ── servers of a model     several
                                             └─ router ── servers of another
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from engines.devices.child_processes import ChildProcesses, log_tail
from engines.sglang.servers.router import Router
from engines.sglang.servers.router_main import KEY_VARIABLE
from engines.sglang.servers.server import Server
from engines.sglang.serving.gateway import Gateway
from engines.sglang.serving.parsers import NONE, Parsers
from engines.sglang.spec import FleetSpec
from infra.access import LOOPBACK, reachable
from infra.cuda import has_cuda
from infra.errors import EngineError
from infra.server_keys import forget_key, note_key

_LAUNCHER = "engines.sglang.servers.launcher"
_ROUTER: Mapping[str, object] = {
    # the same beginning of a prompt goes where it is cached
    "--policy": "cache_aware",
    "--log-level": "error",
}
_LOOK_S = 0.5
_ROUTES_S = 120.0
"""what a router may take to look at servers that answer"""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model of an endpoint, under the name that requests give as `model`."""

    name: str
    folder: Path
    parsers: Parsers
    servers: int = 1
    tp: int = 1
    """devices of one server"""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """SGLang server arguments that win over ours"""

    def spec(self) -> FleetSpec:
        ours: dict[str, Any] = {
            "host": LOOPBACK,
            "served_model_name": self.name,
            "skip_tokenizer_init": False,
            "grammar_backend": "xgrammar",
        }
        if self.parsers.tools != NONE:
            ours["tool_call_parser"] = self.parsers.tools
        if self.parsers.thinking != NONE:
            ours["reasoning_parser"] = self.parsers.thinking
        return FleetSpec(sglang=ours | dict(self.options))


class Endpoint:
    """A running endpoint; `close`, or the end of this process however it ends, ends all of it."""

    def __init__(self, logs: Path, host: str, port: int, key: str) -> None:
        """Nothing is started yet. `key`: what requests must carry; empty: nothing, or the key of
        this home where a router listens beyond loopback."""
        self.url = f"http://{reachable(host)}:{port}"
        self._logs, self._host, self._port, self._key = logs, host, port, key
        self._parents: list[ChildProcesses] = []
        self._parts: list[Server | Router] = []
        self._gateway: Gateway | None = None
        self._devices = 0
        """that servers have, from the first one on"""

    @property
    def server_urls(self) -> list[str]:
        """Of the SGLang servers, in the models' order; they listen on loopback, without a key."""
        return [part.url for part in self._parts if isinstance(part, Server)]

    def start(self, models: Sequence[ServedModel]) -> None:
        """Return when every model answers. Raises EngineError with the end of a log."""
        engines, programs = self._children(_LAUNCHER), self._programs(len(models) == 1)
        routers = {model.name: self._router(programs, model, len(models)) for model in models}
        servers: dict[str, list[Server]] = {}
        for model in models:
            servers[model.name] = self._servers(engines, model)
        everyone = [server for own in servers.values() for server in own]
        with ThreadPoolExecutor(len(everyone)) as pool:
            list(pool.map(Server.wait_ready, everyone))
        for name, router in routers.items():
            router.wait_ready()
            router.set_servers([server.url for server in servers[name]], _ROUTES_S)
        if len(models) > 1:
            addresses = {name: router.url for name, router in routers.items()}
            self._gateway = Gateway(self._host, self._port, self._key, addresses)

    def _programs(self, is_one: bool) -> ChildProcesses:
        """The parent of the routers. One that clients talk to takes the key from its environment,
        so that it is in no argument."""
        if self._key and is_one:
            os.environ[KEY_VARIABLE] = self._key
        try:
            return self._children("")
        finally:
            os.environ.pop(KEY_VARIABLE, None)

    def _router(self, programs: ChildProcesses, model: ServedModel, count: int) -> Router:
        name = f"router-{_file_name(model.name)}"
        if count > 1:
            router = Router(programs, name, LOOPBACK, flags=_ROUTER)
        else:
            if self._key:
                note_key(self.url, self._key)
            router = Router(programs, name, self._host, port=self._port, flags=_ROUTER)
        self._parts.append(router)
        return router

    def _servers(self, engines: ChildProcesses, model: ServedModel) -> list[Server]:
        made: list[Server] = []
        for number in range(model.servers):
            device = self._devices if has_cuda() else 0
            self._devices += model.tp
            name = f"{_file_name(model.name)}-{number}"
            made.append(Server(engines, name, model.spec(), model.folder, model.tp, None, device))
            self._parts.append(made[-1])
        return made

    def watch(self) -> None:
        """Return never; raises EngineError when a part of it has ended by itself."""
        while True:
            for part in self._parts:
                if not part.is_alive:
                    raise EngineError(
                        f"{part.name} ended while serving; the end of {part.log}:\n"
                        f"{log_tail(part.log)}\nStart again; a server that ran out of memory needs"
                        " fewer tokens at once: --sglang max_total_tokens=N"
                    )
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """End every process of it; doing it twice is harmless."""
        with ExitStack() as stack:  # what cannot be ended keeps nothing else from ending
            for parent in self._parents:
                stack.callback(parent.close)
            if self._key:
                stack.callback(forget_key, self.url)
            if self._gateway is not None:
                stack.callback(self._gateway.close)
        self._parents.clear()

    def _children(self, preloaded: str) -> ChildProcesses:
        self._parents.append(ChildProcesses(self._logs, preloaded))
        return self._parents[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _file_name(model: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model)
