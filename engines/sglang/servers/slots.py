"""The servers of one host in numbered slots, and the routers before them. Knows no Ray, no leases.

A slot keeps its port and its log for life; its server is replaced when it dies or when another
architecture is wanted. A router belongs to one set of slots for good: the router needs a second to
take a server in, far longer than new weights do.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines.devices.child_processes import ChildProcesses
from engines.devices.host_agent import HostAgent
from engines.devices.kinds import SERVER_PARTS, ServerPart
from engines.devices.placement import first_server_device
from engines.sglang.servers import sleeping
from engines.sglang.servers.router import Router
from engines.sglang.servers.server import Server
from engines.sglang.spec import FleetSpec
from engines.weights.disk import load_folder
from infra.access import listening_host, reachable
from infra.cuda import used_bytes
from infra.errors import EngineError, InputError
from infra.processes.memory import tree_bytes
from infra.processes.ports import free_ports

_LAUNCHER = "engines.sglang.servers.launcher"
ROUTER_TRIES = 3
"""a port that was free a moment ago may be somebody else's when the router binds it"""
# Fields of config.json that say where a model came from, not what it is.
_PROVENANCE = ("_name_or_path", "transformers_version")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs, whatever it serves."""

    tp: int
    """devices of the server"""
    shared_gpu: int | None = None
    """the first of them, where it takes turns with a trainer there; None: its own GPUs, by the
    number of its slot, or none"""


def architecture(spec: FleetSpec, model: Path, place: Place) -> str:
    """Equal for models that one running server can take in turn by loading weights.

    Raises InputError if the folder has no readable config.json.
    """
    parts: dict[str, Any] = {"spec": spec.of_servers(), "place": asdict(place)}
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
        self.server: Server | None = None
        self._children = children
        self._index, self._num_gpus = index, num_gpus
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
        """Whether a model of this architecture needs no new server."""
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
        """Those that a server at this place uses; none on a CPU."""
        first = self._first_gpu(place)
        return frozenset(range(first, first + place.tp) if self._num_gpus else ())

    @property
    def held_gpus(self) -> frozenset[int]:
        """Those of which the server here holds memory."""
        is_empty = self.server is None or self._asleep == SERVER_PARTS
        return frozenset() if is_empty else self.gpus(self._place)

    @property
    def held_bytes(self) -> int:
        """What its first GPU holds, for whomever; on a CPU, what its processes hold of memory."""
        if self.server is None:
            return 0
        gpus = self.gpus(self._place)
        return used_bytes(min(gpus)) if gpus else tree_bytes(self.server.pid)

    def free_memory(self) -> None:
        """Of a server that nobody uses: it sleeps if it can, and ends if not."""
        try:
            self._sleep(SERVER_PARTS)
        except EngineError:
            self.stop()

    def _sleep(self, parts: frozenset[ServerPart]) -> None:
        if not self._can_sleep:
            if "weights" in parts:
                self.stop()
        elif self.is_alive:
            sleeping.put_to_sleep(self.url, parts - self._asleep)
            self._asleep |= parts

    def stop(self) -> None:
        self._architecture, self._asleep = "", frozenset()
        if self.server is not None:
            self.server.stop()
            self.server = None

    def _start(self, spec: FleetSpec, model: Path, place: Place) -> None:
        self.stop()
        self._place = place
        self.server = Server(
            self._children,
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
        sleeping.wake(self.url, parts & self._asleep)
        self._asleep -= parts

    def _first_gpu(self, place: Place) -> int:
        if place.shared_gpu is not None:
            return place.shared_gpu
        return first_server_device(self._index, place.tp, self._num_gpus)

    @property
    def _can_sleep(self) -> bool:
        """Whether SGLang can give back the memory of the server that runs here."""
        return self._place.shared_gpu is not None


class ServerSlots:
    """All slots of this host. Methods block; those on different slots may run side by side."""

    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent
        self._servers = agent.children(_LAUNCHER)
        self._programs = agent.children()
        self._slots: dict[str, Slot] = {}
        self._routers: dict[frozenset[str], Router] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Slot:
        return self._slots[name]

    def grow(self, count: int) -> tuple[str, ...]:
        """Have at least `count` slots; returns the names of all, in order."""
        with self._lock:
            for index in range(len(self._slots), count):
                slot = Slot(self._servers, index, self._agent.num_gpus)
                self._slots[slot.name] = slot
            return tuple(self._slots)

    def prepare(
        self, places: Mapping[str, Place], spec: FleetSpec, model: Path, version: int
    ) -> Router:
        """Servers in these slots that serve `model` as `version`, and the router before them.

        Raises EngineError with the end of a log if a server does not come up or refuses.
        """
        slots = {self._slots[name]: place for name, place in places.items()}
        with ThreadPoolExecutor(len(slots) + 1, thread_name_prefix="slots") as pool:
            ready_router = pool.submit(self.router, places)
            for started in [pool.submit(x.ensure, spec, model, at) for x, at in slots.items()]:
                started.result()
            load_folder(model, [slot.url for slot in slots], version)
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
        self._agent.end_children(_LAUNCHER)
        self._agent.end_children()
