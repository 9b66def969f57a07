"""OpenAI's API for one or several models: each has servers behind a router of its own.

client ── router (HOST:PORT, with the key) ── servers (loopback)                 one model
client ── gateway (HOST:PORT, with the key) ─┬─ router ── servers of a model     several
                                             └─ router ── servers of another

Behind the first of them, each asks the next for the key of this home.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from engines.devices.child_processes import ChildProcesses, log_tail
from engines.sglang.http import call
from engines.sglang.servers.router import Router
from engines.sglang.servers.server import Server
from engines.sglang.serving.models_gateway import Gateway
from engines.sglang.serving.served_models import ServedModel, router_form
from engines.sglang.topology.placing import PlacedServer, place_here
from infra.access import LOOPBACK, forget_key, note_key, reachable, required_key
from infra.cuda import has_cuda
from infra.errors import EngineError

_LAUNCHER = "engines.sglang.servers.server_launcher"
_ROUTER: Mapping[str, object] = {"--log-level": "error"}
_LOOK_S = 0.5
_ROUTES_S = 120.0
"""what a router may take to look at servers that answer"""
_ELSEWHERE_S = 3600.0
_ASK_S = 10.0


class Endpoint:
    """A running endpoint; `close`, or the end of this process however it ends, ends all of it."""

    def __init__(self, logs: Path, host: str, port: int, key: str) -> None:
        """Nothing is started yet. `key`: what requests must carry; empty: the key of this home."""
        self.url = f"http://{reachable(host)}:{port}"
        self.logs, self._host, self._port, self._key = logs, host, port, key
        self._parents: list[ChildProcesses] = []
        self._parts: list[Server | Router] = []
        self._gateway: Gateway | None = None

    @property
    def server_urls(self) -> list[str]:
        """Of the SGLang servers of this host, in the models' order."""
        return [part.url for part in self._parts if isinstance(part, Server)]

    def start_here(self, models: Sequence[ServedModel]) -> None:
        """All of it on this host. Raises InputError where it has too few GPUs, and EngineError."""
        self.start(models, place_here({m.name: m.fleet for m in models}), LOOPBACK, True)

    def start(
        self,
        models: Sequence[ServedModel],
        servers: Sequence[PlacedServer],
        here: str,
        has_routers: bool,
    ) -> None:
        """Return when every model answers, or, on a host without the routers, its own servers.
        `here`: this host's address. Raises EngineError with the end of a log.
        """
        engines = self._children(_LAUNCHER)
        by_name = {model.name: model for model in models}
        nodes = [
            self._node(engines, by_name[server.fleet], server, rank)
            for server in servers
            for rank, node in enumerate(server.nodes)
            if node.host.address == here
        ]
        answering = [node for rank, node in nodes if rank == 0]
        elsewhere = [s.url for s in servers if s.address != here] if has_routers else []
        with ThreadPoolExecutor(len(nodes) + len(elsewhere) or 1) as pool:
            waits = [pool.submit(node.wait_ready) for node in answering]
            waits += [pool.submit(self._wait_for, url) for url in elsewhere]
            for wait in waits:
                wait.result()
        if has_routers:
            self._route(models, servers)

    def _node(
        self, engines: ChildProcesses, model: ServedModel, server: PlacedServer, rank: int
    ) -> tuple[int, Server]:
        """A server's process on this host; only that of rank 0 answers requests."""
        node = server.nodes[rank]
        name = _file_name(server.name) + (f"-node-{rank}" if rank else "")
        device = node.first_device if has_cuda() else 0
        tp = model.fleet.tp_per_server
        spec = model.spec(server, rank)
        started = Server(engines, name, spec, model.folder, tp, server.port, device)
        self._parts.append(started)
        return rank, started

    def _route(self, models: Sequence[ServedModel], servers: Sequence[PlacedServer]) -> None:
        programs = self._children("")
        routers = {
            model.name: self._router(
                programs, model, [s for s in servers if s.fleet == model.name], len(models)
            )
            for model in models
        }
        for model in models:
            router, own = routers[model.name], [s for s in servers if s.fleet == model.name]
            router.wait_ready()
            router.set_servers([server.url for server in own], _ROUTES_S)
        if len(models) > 1:
            addresses = {name: router.url for name, router in routers.items()}
            self._gateway = Gateway(self._host, self._port, self._key or required_key(), addresses)

    def _router(
        self,
        programs: ChildProcesses,
        model: ServedModel,
        servers: Sequence[PlacedServer],
        count: int,
    ) -> Router:
        name = f"router-{_file_name(model.name)}"
        flags = {**_ROUTER, **router_form(model.fleet, servers)}
        if count > 1:
            router = Router(programs, name, LOOPBACK, flags=flags)
        else:
            if self._key:
                note_key(self.url, self._key)
            router = Router(programs, name, self._host, port=self._port, flags=flags, key=self._key)
        self._parts.append(router)
        return router

    def _wait_for(self, url: str) -> None:
        """Of a server that another host starts."""
        deadline = time.monotonic() + _ELSEWHERE_S
        while True:
            try:
                call(url, "/model_info", timeout=_ASK_S)
                return
            except EngineError as error:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"the server at {url}, which another host starts, did not answer in"
                        f" {_ELSEWHERE_S:.0f} s: run `tributary fleet up` there, with --on and its"
                        " address"
                    ) from error
            time.sleep(_LOOK_S)

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
        self._parents.append(ChildProcesses(self.logs, preloaded))
        return self._parents[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _file_name(model: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model)
