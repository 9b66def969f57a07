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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.devices.host_agent import HostAgent
from engines.devices.lease import Lease
from engines.devices.units import OwnerSettings, Request
from engines.sglang.servers.remote_slot import RemoteSlot
from engines.sglang.servers.slots import ServerSlots, Slot, architecture
from engines.sglang.spec import FleetSpec
from infra.errors import EngineError, OutOfMemory

_ASK_EVERY_S = 5.0
_LOOK_S = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerTerms:
    """What a lease's servers have to serve."""

    spec: FleetSpec
    model: Path
    """HF folder, readable on the servers' host"""
    tp: int
    version: int = 0
    """what the servers call the weights in `model`"""
    is_asleep: bool = False
    """whether they give back the memory of their devices, and serve nothing"""


@dataclass(frozen=True, slots=True)
class ServerUse:
    """What a lease on servers grants."""

    router_url: str
    server_urls: tuple[str, ...]
    takes_batches: bool = True
    """whether a request may have several sequences with a seed each: the servers have our plugin"""


@dataclass(slots=True)
class _Fleet:
    """What is known of a lease's servers. `version` is the newest that was seen served."""

    terms: ServerTerms
    version: int
    down: set[str] = field(default_factory=set[str])
    """slots that the router leaves out"""
    asked: set[str] = field(default_factory=set[str])
    """slots that are being asked whether they still work"""


class ServerUnits:
    """The servers of the cluster; see `Units`."""

    def __init__(self, agent: HostAgent, settings: OwnerSettings) -> None:
        self._slots = ServerSlots(agent)
        self._hung_s = settings.hung_s
        self._fleets: dict[str, _Fleet] = {}
        self._restarting: set[str] = set()
        """slots at which a thread works"""
        self._jobs: set[asyncio.Task[None]] = set()
        self.restarts = 0

    def grow(self, count: int) -> Sequence[str]:
        return self._slots.grow(count)

    def running(self) -> Mapping[str, int]:
        slots = (self._slots[name] for name in self._slots.grow(0))
        return {x.name: x.server.pid for x in slots if x.server is not None}

    def choose(self, free: Sequence[str], request: Request) -> Sequence[str]:
        """Those first whose server can take the model as it runs."""
        wanted = _architecture(request.terms)
        fitting_first = sorted(free, key=lambda name: not self._slots[name].fits(wanted))
        return sorted(fitting_first[: request.count], key=free.index)

    async def warm(self, name: str) -> None:
        """The parent of servers runs already; what a server has to be, only a lease knows."""

    async def prepare(self, lease: Lease, terms: ServerTerms) -> ServerUse:
        """Raises EngineError with the end of a log if a server does not come up or refuses."""
        self._fleets.pop(lease.id, None)  # nobody repairs it meanwhile
        await self._until_restarted(lease.units)
        if terms.is_asleep:
            slots = [self._slots[name] for name in lease.units]
            await asyncio.gather(*(asyncio.to_thread(slot.stop) for slot in slots))
            return ServerUse("", tuple(slot.url for slot in slots))
        router = await asyncio.to_thread(
            self._slots.prepare, lease.units, terms.spec, terms.model, terms.tp, terms.version
        )
        self._fleets[lease.id] = _Fleet(terms, terms.version)
        return ServerUse(router.url, tuple(self._slots[name].url for name in lease.units))

    def end_lease(self, lease: Lease) -> None:
        self._fleets.pop(lease.id, None)

    async def give_back(self, name: str, is_clean: bool) -> None:
        """A server stays as it is: the next lease makes it usable, or replaces it."""
        await self._until_restarted([name])

    async def repair(self, leases: Sequence[Lease], idle: Sequence[str]) -> Sequence[str]:
        """Take dead servers out, restart them, put them back when they serve what others do."""
        for lease in leases:
            if (fleet := self._fleets.get(lease.id)) is not None:
                await self._repair(lease, fleet)
        return ()

    async def is_healthy(self, lease: Lease) -> bool:
        if lease.id not in self._fleets or self._restarting & set(lease.units):
            return False
        slots = [self._slots[name] for name in lease.units]
        return await asyncio.to_thread(lambda: all(slot.is_alive for slot in slots))

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
        try:
            await asyncio.to_thread(slot.ensure, terms.spec, terms.model, terms.tp)
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
            is_current = self._fleets.get(lease.id) is fleet
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
    return architecture(terms.spec, terms.model, terms.tp)


async def _version(slot: Slot | RemoteSlot) -> int:
    if slot.server is None:
        raise EngineError(f"{slot.name} has no server")
    return int(await asyncio.to_thread(lambda server: server.version, slot.server))
