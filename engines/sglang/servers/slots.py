"""The servers of one host in numbered slots, and the routers before them. Knows no Ray, no leases.

A slot keeps its log for life, and its port until somebody else takes it; its server is replaced
when it dies or when another architecture is wanted. A router belongs to one set of slots for good:
the router needs a second to take a server in, far longer than new weights do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from engines.devices.child_processes import ChildProcesses
from engines.devices.host_agent import HostAgent
from engines.devices.ray_cluster import OWN, Host
from engines.devices.units import SERVER_PARTS, ServerPart, first_server_device, server_host
from engines.sglang.http import order, read_text
from engines.sglang.servers.remote_slot import RemoteSlot
from engines.sglang.servers.router import Router
from engines.sglang.servers.server import Place, Server, architecture
from engines.sglang.spec import FleetSpec
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.disk import load_folder
from infra.access import listening_host, reachable
from infra.cuda import used_bytes
from infra.errors import EngineError
from infra.processes.memory import tree_bytes
from infra.processes.network import free_ports, is_free

TAGS: Mapping[ServerPart, tuple[str, ...]] = {
    "weights": ("weights",),
    "cache": ("kv_cache", "cuda_graph"),
}
"""SGLang's names for a part"""
_MEMORY_S = 300.0
"""what giving back or taking a device's memory may take; graphs go through the host's"""
_CONTROL_S = 30.0
LAUNCHER = "engines.sglang.servers.server_launcher"
ROUTER_TRIES = 3
"""a port that was free a moment ago may be somebody else's when the router binds it"""


def put_to_sleep(url: str, parts: Collection[ServerPart]) -> None:
    """Give back these parts, which are awake; their content is lost. Raises EngineError.

    Whatever runs is ended: a stage lets it finish first. Without its weights a server calls them
    "broken", so that no client takes what it might answer.
    """
    if not parts:
        return
    read_text(url, "/abort_request", {"abort_all": True}, timeout=_CONTROL_S)
    order(url, "/pause_generation", {"mode": "retract"}, timeout=_CONTROL_S)
    if "weights" in parts:
        broken = {"new_version": BROKEN_WEIGHTS, "abort_all_requests": True}
        order(url, "/update_weight_version", broken, timeout=_CONTROL_S)
    read_text(url, "/release_memory_occupation", {"tags": _tags(parts)}, timeout=_MEMORY_S)


def wake(url: str, parts: Collection[ServerPart]) -> None:
    """Take these parts again, which sleep; weights have to be published or loaded afterwards. With
    its cache a server generates again. Raises EngineError."""
    if not parts:
        return
    read_text(url, "/resume_memory_occupation", {"tags": _tags(parts)}, timeout=_MEMORY_S)
    if "cache" in parts:
        order(url, "/continue_generation", {}, timeout=_CONTROL_S)


def _tags(parts: Collection[ServerPart]) -> list[str]:
    return [tag for part in sorted(parts) for tag in TAGS[part]]


class Slot:
    """A place for one server. Not for use by two threads at once."""

    def __init__(self, children: Callable[[], ChildProcesses], index: int, num_gpus: int) -> None:
        """`children` gives the running parent of servers."""
        self.name = f"server-{index}"
        self.index, self.host = index, OWN
        self.server: Server | None = None
        self._children = children
        self._num_gpus = num_gpus
        self._host, self._port = reachable(listening_host()), free_ports(1)[0]
        self._architecture = ""
        self._place = Place(tp=1)
        self._asleep: frozenset[ServerPart] = frozenset()
        """what SGLang has given back"""

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def is_alive(self) -> bool:
        return self.server is not None and self.server.is_alive

    def fits(self, wanted: str) -> bool:
        """Return whether a model of this architecture needs no new server."""
        return self._architecture == wanted

    def ensure(self, spec: FleetSpec, model: Path, place: Place) -> None:
        """A ready server that can take `model`'s weights; its weights are not those yet."""
        wanted = architecture(spec, model, place)
        if self.server is not None and self._architecture == wanted and self.server.is_alive:
            try:
                self._wake(SERVER_PARTS)
                self.server.recover()
                return
            except EngineError:
                pass  # it lives but does not work: a new one takes its place
        self._start(spec, model, place)

    def hold(
        self, parts: frozenset[ServerPart], spec: FleetSpec, model: Path, place: Place
    ) -> None:
        """Have these parts on the device, and no others. Weights that woke are not `model`'s yet.

        A server that cannot sleep, as on a CPU, ends when it has to give its weights back, and has
        its cache as long as it has its weights.
        """
        if parts and not self.is_alive:
            self._start(spec, model, place)
        self._sleep(SERVER_PARTS - parts)
        if self.is_alive:
            self._wake(parts)

    def gpus(self, place: Place) -> frozenset[int]:
        """Return the GPUs that a server at this place uses; none on a CPU."""
        first = self._first_gpu(place)
        return frozenset(range(first, first + place.tp) if self._num_gpus else ())

    @property
    def held_gpus(self) -> frozenset[int]:
        """Return the GPUs of which the server here holds memory."""
        is_empty = self.server is None or self._asleep == SERVER_PARTS
        return frozenset() if is_empty else self.gpus(self._place)

    @property
    def held_bytes(self) -> int:
        """Return what its first GPU holds, for whomever; on a CPU, what its processes hold of
        memory.
        """
        if self.server is None:
            return 0
        gpus = self.gpus(self._place)
        return used_bytes(min(gpus)) if gpus else tree_bytes(self.server.pid)

    def free_memory(self) -> None:
        """Give back the memory of a server that nobody uses: it sleeps if it can, and ends if
        not."""
        try:
            self._sleep(SERVER_PARTS)
        except EngineError:
            self.stop()

    def _sleep(self, parts: frozenset[ServerPart]) -> None:
        if not self._can_sleep:
            if "weights" in parts:
                self.stop()
        elif self.is_alive:
            put_to_sleep(self.url, parts - self._asleep)
            self._asleep |= parts

    def load(self, model: Path, version: int) -> None:
        """Serve the weights in `model` as `version`."""
        load_folder(model, [self.url], version)

    def stop(self) -> None:
        self._architecture, self._asleep = "", frozenset()
        if self.server is not None:
            self.server.stop()
            self.server = None

    def _start(self, spec: FleetSpec, model: Path, place: Place) -> None:
        self.stop()
        if not is_free(self._port):
            self._port = free_ports(1)[0]
        self._place = place
        self.server = Server(
            self._children(),
            self.name,
            spec,
            model,
            place.tp,
            self._port,
            self._first_gpu(place),
            saves_memory=self._can_sleep,
        )
        self.server.wait_ready()
        self._architecture = architecture(spec, model, place)

    def _wake(self, parts: frozenset[ServerPart]) -> None:
        wake(self.url, parts & self._asleep)
        self._asleep -= parts

    def _first_gpu(self, place: Place) -> int:
        if place.chosen_gpu is not None:
            return place.chosen_gpu
        return first_server_device(self.index, place.tp, self._num_gpus)

    @property
    def _can_sleep(self) -> bool:
        """Return whether SGLang can give back the memory of the server that runs here."""
        return self._place.shared_gpu is not None


class ServerSlots:
    """Holds all slots, on this host and on others. Methods block; those on different slots may run
    side by side."""

    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent
        for preloaded in (LAUNCHER, ""):  # they are ready when the first server is wanted
            agent.children(preloaded)
        self._slots: dict[str, Slot | RemoteSlot] = {}
        self._routers: dict[frozenset[str], Router] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Slot | RemoteSlot:
        return self._slots[name]

    def grow(self, count: int) -> tuple[str, ...]:
        """Have at least `count` slots; returns the names of all, in order."""
        with self._lock:
            for index in range(len(self._slots), count):
                slot = self._new_slot(index, self._new_host(index, 1))
                self._slots[slot.name] = slot
            return tuple(self._slots)

    def gpus(self, name: str, place: Place) -> frozenset[int]:
        """Numbers in the cluster of the GPUs that a server at this place would have in the slot;
        none on a CPU."""
        slot = self._slots[name]
        host = self._host(slot, place)
        first = place.chosen_gpu
        if first is None:
            first = host.first_gpu + first_server_device(slot.index, place.tp, host.num_gpus)
        return frozenset(range(first, first + place.tp) if host.num_gpus else ())

    @property
    def hosts(self) -> Sequence[Host]:
        """Return the hosts that servers are given to."""
        return self._agent.hosts.known

    def _host(self, slot: Slot | RemoteSlot, place: Place) -> Host:
        """Where a server at this place belongs, as hosts come and go."""
        if place.chosen_gpu is not None:
            return self._agent.hosts.with_gpu(place.chosen_gpu)
        return self._new_host(slot.index, place.tp)

    def _new_host(self, index: int, tp: int) -> Host:
        known = self._agent.hosts.known
        return known[server_host(index, [host.num_gpus for host in known], tp)]

    def _new_slot(self, index: int, host: Host) -> Slot | RemoteSlot:
        if host.node == OWN:
            return Slot(partial(self._agent.children, LAUNCHER), index, self._agent.num_gpus)
        return RemoteSlot(self._agent.hosts, host, index)

    def settle(self, name: str, place: Place, *, stays: bool) -> Slot | RemoteSlot:
        """The slot, on the host where a server at this place belongs; with `stays` on the one where
        it is, unless that is lost. Raises EngineError."""
        slot = self._slots[name]
        host = self._agent.hosts.living(slot.host) if stays else None
        host = host or self._host(slot, place)
        if slot.host != host.node:
            slot.stop()
            slot = self._slots[name] = self._new_slot(slot.index, host)
        return slot

    def prepare(
        self, places: Mapping[str, Place], spec: FleetSpec, model: Path, version: int
    ) -> Router:
        """Servers in these slots, where they are, that serve `model` as `version`, and the router
        before them.

        Raises EngineError with the end of a log if a server does not come up or refuses.
        """
        slots = {self._slots[name]: place for name, place in places.items()}
        with ThreadPoolExecutor(len(slots) + 1, thread_name_prefix="slots") as pool:
            ready_router = pool.submit(self.router, places)
            for started in [pool.submit(x.ensure, spec, model, at) for x, at in slots.items()]:
                started.result()
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
                    router = self._routers[key] = Router(self._agent.children(), f"router-{label}")
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
