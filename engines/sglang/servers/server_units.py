"""Servers as the owner of devices leases them: behind one router a lease, warm between leases.

A server that dies while leased is removed from the router immediately and restarted; it returns to
the router when it serves the fleet's version. One that neither answers nor works is ended, and so
restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.devices.host_agent import HostAgent
from engines.devices.lease import Lease
from engines.devices.units import SERVER_PARTS, OwnerSettings, Request, ServerPart
from engines.sglang.http import order
from engines.sglang.roles.gpu_places import role_places
from engines.sglang.servers.remote_slot import RemoteSlot
from engines.sglang.servers.server import Place, architecture
from engines.sglang.servers.slots import ServerSlots, Slot
from engines.sglang.spec import FleetSpec
from infra.errors import EngineError, InputError, LeaseLost, OutOfMemory
from infra.processes.coroutines import all_or_first_error

_ASK_EVERY_S = 5.0
_LOOK_S = 0.05
_CONTROL_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerDevices:
    """Example: TrainerDevices((0, 1))"""

    gpus: tuple[int, ...]
    """their numbers in the cluster, one a rank; none on a CPU"""


@dataclass(frozen=True, slots=True)
class ServerTerms:
    """What a lease's servers have to serve."""

    spec: FleetSpec
    model: Path
    """HF folder, readable on the servers' host"""
    tp: int
    version: int = 0
    """what the servers call the weights in `model`"""
    shares: TrainerDevices | None = None
    """those of a trainer that they take turns with; None: devices of their own"""
    device: str = ""
    """the kind of GPU that they want; empty: any"""
    own_gpus: tuple[int, ...] = ()
    """the first GPU of each server, where the owner of devices chose them for a role; empty: they
    follow from the slots"""

    def place(self, index: int) -> Place:
        """Return the place of the lease's server with this number. Raises InputError if the
        trainer's devices have no room for it."""
        if self.own_gpus:
            return Place(self.tp, own_gpu=self.own_gpus[index])
        if self.shares is None or not self.shares.gpus:
            return Place(self.tp)
        first = index * self.tp
        own = self.shares.gpus[first : first + self.tp]
        if len(own) < self.tp or own[-1] - own[0] != self.tp - 1:
            raise InputError(
                f"server {index} of {self.tp} GPUs has to share those of the trainer's ranks, which"
                f" are {', '.join(map(str, self.shares.gpus))}, and a server takes neighbours:"
                " lower `servers` or `tp_per_server` in the stage's resources, or set"
                " `share: false`"
            )
        return Place(self.tp, own[0])


@dataclass(frozen=True, slots=True)
class ServerUse:
    """What a lease on servers grants."""

    router_url: str
    server_urls: tuple[str, ...]
    takes_batches: bool = True
    """whether a request may have several sequences with a seed each: the servers have our plugin"""
    given_back: int = 0
    """bytes of their devices, when they last were told what to have there"""
    held: int = 0
    """what they had afterwards"""


@dataclass(frozen=True, slots=True)
class HeldParts:
    """What a lease's servers have on their devices from now on; whatever they serve stays so. They
    generate while they have all parts. Weights that slept have to be published or loaded again."""

    parts: frozenset[ServerPart]


@dataclass(slots=True)
class _Fleet:
    """What is known of a lease's servers. `version` is the newest that was seen served."""

    terms: ServerTerms
    version: int
    down: set[str] = field(default_factory=set[str])
    """slots that the router leaves out"""
    asked: set[str] = field(default_factory=set[str])
    """slots that are being asked whether they still work"""
    parts: frozenset[ServerPart] = SERVER_PARTS
    """what is awake"""
    places: dict[str, Place] = field(default_factory=dict[str, Place])


@dataclass(slots=True, eq=False)
class _Order:
    """What a holder asked for, until its last thread ends."""

    lease: Lease
    is_void: bool = False
    """the lease ended: what was begun runs to its end, and nothing more is begun"""

    def check(self) -> None:
        if self.is_void:
            raise LeaseLost(f"the lease of {self.lease.holder} ended while its servers started")


class ServerUnits:
    """The servers of the cluster; see `Units`."""

    def __init__(self, agent: HostAgent, settings: OwnerSettings) -> None:
        self._slots = ServerSlots(agent)
        self._hung_s = settings.hung_s
        self._fleets: dict[str, _Fleet] = {}
        self._restarting: set[str] = set()
        """slots at which a thread works"""
        self._orders: set[_Order] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self.restarts = 0

    def grow(self, count: int) -> Sequence[str]:
        return self._slots.grow(count)

    def running(self) -> Mapping[str, int]:
        slots = (self._slots[name] for name in self._slots.grow(0))
        return {x.name: x.server.pid for x in slots if x.server is not None}

    def place(self, requests: Sequence[Request], taken: frozenset[int]) -> Sequence[Request] | None:
        """Several roles, or one that wants a kind of GPU, get GPUs that no other servers have."""
        terms: list[ServerTerms] = [request.terms for request in requests]
        if len(requests) == 1 and not terms[0].device:
            return requests
        places = role_places(requests, self._slots.hosts, taken)
        if places is None:
            return None
        return [
            replace(request, terms=replace(each, own_gpus=places.get(index, ())))
            for index, (request, each) in enumerate(zip(requests, terms, strict=True))
        ]

    def choose(self, free: Sequence[str], request: Request) -> Sequence[str]:
        """Choose those units first whose server can take the model as it runs."""
        wanted = _architecture(request.terms)
        fitting_first = sorted(free, key=lambda name: not self._slots[name].fits(wanted))
        return sorted(fitting_first[: request.count], key=free.index)

    def gpus(self, name: str, request: Request) -> frozenset[int]:
        terms: ServerTerms = request.terms
        if terms.own_gpus:
            return frozenset(
                gpu for first in terms.own_gpus for gpu in range(first, first + terms.tp)
            )
        if terms.shares is not None:
            return frozenset(terms.shares.gpus)
        return self._slots.gpus(name, Place(terms.tp))

    def held_gpus(self, name: str) -> frozenset[int]:
        return self._slots[name].held_gpus

    async def free_memory(self, name: str) -> None:
        await asyncio.to_thread(self._slots[name].free_memory)

    async def warm(self, name: str) -> None:
        """The parent of servers runs already; what a server has to be, only a lease knows."""

    async def prepare(self, lease: Lease, terms: ServerTerms | HeldParts) -> ServerUse:
        """Raises EngineError with the end of a log if a server does not come up or refuses.

        No thread can be stopped: its slots count as worked at until it ends, also after a cancel.
        """
        order = _Order(lease)
        self._orders.add(order)
        work = asyncio.create_task(self._carry_out(order, terms))
        work.add_done_callback(lambda _: self._orders.discard(order))
        return await asyncio.shield(work)

    async def _carry_out(self, order: _Order, terms: ServerTerms | HeldParts) -> ServerUse:
        lease = order.lease
        fleet = self._fleets.get(lease.id)
        if isinstance(terms, ServerTerms):  # in both cases nobody repairs it meanwhile
            self._fleets.pop(lease.id, None)
        elif fleet is not None:
            fleet.parts = frozenset()
        await self._until_restarted(lease.units)
        order.check()
        self._restarting.update(lease.units)
        try:
            if isinstance(terms, ServerTerms):
                return await self._serve(order, terms, fleet)
            return await self._hold(order, terms.parts, fleet)
        finally:
            self._restarting.difference_update(lease.units)

    async def _serve(self, order: _Order, terms: ServerTerms, known: _Fleet | None) -> ServerUse:
        lease = order.lease
        if known is not None:  # its holder does not know which GPUs were chosen for it
            terms = replace(terms, own_gpus=known.terms.own_gpus)
        places = {name: terms.place(index) for index, name in enumerate(lease.units)}
        for name, place in places.items():  # a host may have joined since the last lease
            await asyncio.to_thread(self._slots.settle, name, place, stays=known is not None)
            order.check()
        router = await asyncio.to_thread(
            self._slots.prepare, places, terms.spec, terms.model, terms.version
        )
        order.check()
        self._fleets[lease.id] = _Fleet(terms, terms.version, places=places)
        return ServerUse(router.url, tuple(self._slots[name].url for name in lease.units))

    async def _hold(
        self, order: _Order, parts: frozenset[ServerPart], fleet: _Fleet | None
    ) -> ServerUse:
        if fleet is None:
            raise EngineError("the servers of this lease serve nothing that could sleep or wake")
        names, terms = order.lease.units, fleet.terms
        slots = [self._slots[name] for name in names]
        before = await asyncio.to_thread(_held_bytes, slots)
        order.check()
        await all_or_first_error(
            [
                asyncio.to_thread(slot.hold, parts, terms.spec, terms.model, place)
                for slot, place in zip(slots, fleet.places.values(), strict=True)
            ]
        )
        after = await asyncio.to_thread(_held_bytes, slots)
        router = await asyncio.to_thread(self._slots.router, names)
        order.check()
        if parts == SERVER_PARTS:
            fleet.down.clear()
            await asyncio.to_thread(router.set_servers, [slot.url for slot in slots])
        fleet.parts = parts
        urls = tuple(slot.url for slot in slots)
        return ServerUse(router.url, urls, given_back=max(before - after, 0), held=after)

    def end_lease(self, lease: Lease) -> None:
        self._fleets.pop(lease.id, None)
        for each in self._orders:
            each.is_void = each.is_void or each.lease.id == lease.id

    async def give_back(self, name: str, is_clean: bool) -> None:
        """A server stays as it is: the next lease makes it usable, or replaces it. But one that may
        have been left paused goes on: its scheduler would look for work without a rest."""
        await self._until_restarted([name])
        slot = self._slots[name]
        if not is_clean and slot.is_alive:
            await asyncio.to_thread(order, slot.url, "/continue_generation", {}, timeout=_CONTROL_S)

    async def repair(self, leases: Sequence[Lease], idle: Sequence[str]) -> Sequence[str]:
        """Take dead servers out, restart them, put them back when they serve what others do."""
        for lease in leases:
            fleet = self._fleets.get(lease.id)
            # Without weights it serves nothing, and one that ended is started when they wake.
            if fleet is not None and "weights" in fleet.parts:
                await self._repair(lease, fleet)
        return ()

    async def use(self, lease: Lease) -> ServerUse | None:
        if lease.id not in self._fleets or self._restarting & set(lease.units):
            return None
        slots = [self._slots[name] for name in lease.units]
        if not await asyncio.to_thread(lambda: all(slot.is_alive for slot in slots)):
            return None
        router = await asyncio.to_thread(self._slots.router, lease.units)
        return ServerUse(router.url, tuple(slot.url for slot in slots))

    def close(self) -> None:
        self._slots.close()

    async def _until_restarted(self, names: Iterable[str]) -> None:
        while self._restarting & set(names):
            await asyncio.sleep(_LOOK_S)

    async def _repair(self, lease: Lease, fleet: _Fleet) -> None:
        for name in lease.units:
            alive = await asyncio.to_thread(lambda slot: slot.is_alive, self._slots[name])
            if self._fleets.get(lease.id) is not fleet:  # its holder asked for something else
                return
            if not alive and name not in self._restarting:
                fleet.down.add(name)
                self._restarting.add(name)
                self._spawn(self._restart(fleet, name))
                await self._route(lease, fleet)
        serving = [name for name in lease.units if name not in fleet.down]
        for name in set(serving) - fleet.asked:
            fleet.asked.add(name)
            self._spawn(self._ask(lease, fleet, name))
        for name in serving:
            with suppress(EngineError, ValueError):
                fleet.version = max(fleet.version, await _version(self._slots[name]))
        for name in fleet.down - self._restarting:
            with suppress(EngineError, ValueError):
                # A newer version was published after this sweep looked at the others.
                if await _version(self._slots[name]) >= fleet.version:
                    fleet.down.discard(name)
                    await self._route(lease, fleet)

    async def _route(self, lease: Lease, fleet: _Fleet) -> None:
        """Let the lease's router know which servers serve."""
        urls = [self._slots[name].url for name in lease.units if name not in fleet.down]
        router = await asyncio.to_thread(self._slots.router, lease.units)
        await asyncio.to_thread(router.set_servers, urls)

    async def _restart(self, fleet: _Fleet, name: str) -> None:
        slot, terms = self._slots[name], fleet.terms
        _log.warning("%s died; restarting it", name)
        try:  # its host may be lost
            slot = await asyncio.to_thread(self._slots.settle, name, fleet.places[name], stays=True)
            await asyncio.to_thread(slot.ensure, terms.spec, terms.model, fleet.places[name])
            await asyncio.to_thread(slot.load, terms.model, terms.version)
            self.restarts += 1
        except (EngineError, OutOfMemory):
            _log.exception("%s does not start; trying again", name)
            await asyncio.to_thread(slot.stop)  # as a dead one it is restarted
        finally:
            self._restarting.discard(name)

    async def _ask(self, lease: Lease, fleet: _Fleet, name: str) -> None:
        """End a server that hangs: as a dead one it is seen and restarted."""
        server = self._slots[name].server
        try:
            if server is not None:
                await asyncio.to_thread(server.answer, self._hung_s)
                await asyncio.sleep(_ASK_EVERY_S)
        except EngineError as error:
            is_awake = "weights" in fleet.parts
            is_current = self._fleets.get(lease.id) is fleet and is_awake
            if server is not None and is_current and server.is_alive:
                _log.warning("%s hangs: %s", name, error)
                await asyncio.to_thread(server.stop)  # not its slot: that may have another by now
        finally:
            fleet.asked.discard(name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)


def _architecture(terms: ServerTerms) -> str:
    return architecture(terms.spec, terms.model, terms.place(0))


def _held_bytes(slots: Sequence[Slot | RemoteSlot]) -> int:
    return sum(slot.held_bytes for slot in slots)


async def _version(slot: Slot | RemoteSlot) -> int:
    if slot.server is None:
        raise EngineError(f"{slot.name} has no server")
    return int(await asyncio.to_thread(lambda server: server.version, slot.server))
