"""The servers of one host in numbered slots, and the routers before them. Knows no Ray, no leases.

A slot keeps its port and its log for life; its server is replaced when it dies or when another
architecture is wanted. A router belongs to one set of slots for good: the router needs a second to
take a server in, far longer than new weights do.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engines.devices.child_processes import ChildProcesses
from engines.devices.host_agent import HostAgent
from engines.devices.hosts import OWN, Host
from engines.devices.placement import first_server_device, server_host
from engines.sglang.servers.remote_slot import RemoteSlot
from engines.sglang.servers.router import Router
from engines.sglang.servers.server import Server
from engines.sglang.spec import FleetSpec
from engines.weights.disk import load_folder
from infra.access import listening_host, reachable
from infra.errors import EngineError, InputError
from infra.processes.ports import free_ports

LAUNCHER = "engines.sglang.servers.launcher"
ROUTER_TRIES = 3
"""a port that was free a moment ago may be somebody else's when the router binds it"""
# Fields of config.json that say where a model came from, not what it is.
_PROVENANCE = ("_name_or_path", "transformers_version")


def architecture(spec: FleetSpec, model: Path, tp: int) -> str:
    """Equal for models that one running server can take in turn by loading weights.

    Raises InputError if the folder has no readable config.json.
    """
    parts: dict[str, Any] = {"spec": spec.model_dump(mode="json"), "tp": tp}
    for name in ("config.json", "generation_config.json"):
        path = model / name
        try:
            fields = json.loads(path.read_text()) if path.exists() or "gen" not in name else {}
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): is this an HF folder?") from error
        parts[name] = {key: value for key, value in fields.items() if key not in _PROVENANCE}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Slot:
    """A place for one server. Not for use by two threads at once."""

    def __init__(self, children: ChildProcesses, index: int, num_gpus: int) -> None:
        self.name = f"server-{index}"
        self.index, self.host = index, OWN
        self.server: Server | None = None
        self._children = children
        self._index, self._num_gpus = index, num_gpus
        self._host, self._port = reachable(listening_host()), free_ports(1)[0]
        self._architecture = ""

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def is_alive(self) -> bool:
        return self.server is not None and self.server.is_alive

    def fits(self, wanted: str) -> bool:
        """Whether a model of this architecture needs no new server."""
        return self._architecture == wanted

    def ensure(self, spec: FleetSpec, model: Path, tp: int) -> None:
        """A ready server that can take `model`'s weights; its weights are not those yet."""
        wanted = architecture(spec, model, tp)
        if self.server is not None and self._architecture == wanted and self.server.is_alive:
            try:
                self.server.recover()
                return
            except EngineError:
                pass  # it lives but does not work: a new one takes its place
        self.stop()
        first = first_server_device(self._index, tp, self._num_gpus)
        self.server = Server(self._children, self.name, spec, model, tp, self._port, first)
        self.server.wait_ready()
        self._architecture = wanted

    def load(self, model: Path, version: int) -> None:
        """Serve the weights in `model` as `version`."""
        load_folder(model, [self.url], version)

    def stop(self) -> None:
        self._architecture = ""
        if self.server is not None:
            self.server.stop()
            self.server = None


class ServerSlots:
    """All slots, on this host and on others. Methods block; those on different slots may run side
    by side."""

    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent
        self._servers = agent.children(LAUNCHER)
        self._programs = agent.children()
        self._slots: dict[str, Slot | RemoteSlot] = {}
        self._routers: dict[frozenset[str], Router] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Slot | RemoteSlot:
        return self._slots[name]

    def grow(self, count: int) -> tuple[str, ...]:
        """Have at least `count` slots; returns the names of all, in order."""
        with self._lock:
            for index in range(len(self._slots), count):
                slot = self._new_slot(index, 1)
                self._slots[slot.name] = slot
            return tuple(self._slots)

    def _host(self, index: int, tp: int) -> Host:
        """Where the server of this number belongs, as hosts come and go."""
        known = self._agent.hosts.known
        return known[server_host(index, [host.num_gpus for host in known], tp)]

    def _new_slot(self, index: int, tp: int) -> Slot | RemoteSlot:
        host = self._host(index, tp)
        if host.node == OWN:
            return Slot(self._servers, index, self._agent.num_gpus)
        return RemoteSlot(self._agent.hosts, host, index)

    def _settle(self, name: str, tp: int) -> Slot | RemoteSlot:
        """The slot; without a server, or on a host that is lost, it goes where one of this size
        belongs."""
        slot = self._slots[name]
        is_kept = slot.server is not None and slot.host in self._agent.hosts.nodes
        if not is_kept and slot.host != self._host(slot.index, tp).node:
            slot.stop()
            slot = self._slots[name] = self._new_slot(slot.index, tp)
        return slot

    def prepare(
        self, names: Sequence[str], spec: FleetSpec, model: Path, tp: int, version: int
    ) -> Router:
        """Servers in these slots that serve `model` as `version`, and the router before them.

        Raises EngineError with the end of a log if a server does not come up or refuses.
        """
        slots = [self._settle(name, tp) for name in names]
        with ThreadPoolExecutor(len(slots) + 1, thread_name_prefix="slots") as pool:
            ready_router = pool.submit(self.router, names)
            for future in [pool.submit(slot.ensure, spec, model, tp) for slot in slots]:
                future.result()
            elsewhere = [slot for slot in slots if isinstance(slot, RemoteSlot)]
            loading = [pool.submit(slot.load, model, version) for slot in elsewhere]
            if here := [slot.url for slot in slots if isinstance(slot, Slot)]:
                load_folder(model, here, version)
            for future in loading:
                future.result()
            router = ready_router.result()
        router.set_servers([slot.url for slot in slots])
        return router

    def router(self, names: Iterable[str]) -> Router:
        """The running router of this set of slots; it may not know their servers yet."""
        key = frozenset(names)
        for tries_left in reversed(range(ROUTER_TRIES)):
            with self._lock:
                router = self._routers.get(key)
                if router is None or not router.is_alive:
                    label = "-".join(sorted(name.removeprefix("server-") for name in key))
                    router = self._routers[key] = Router(self._programs, f"router-{label}")
            try:
                router.wait_ready()
                return router
            except EngineError:
                if router.is_alive or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """End every server and router."""
        self._agent.end_children(LAUNCHER)
        self._agent.end_children()
