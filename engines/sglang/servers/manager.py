"""The keeper of a cluster's generation servers: one detached Ray actor that stages lease from.

    open_manager -> lease(n) -> servers run the architecture, weights loaded, router ready -> Grant
                 -> the stage generates, publishes, renews -> release -> the servers stay warm

Requests are served in order of arrival; the first waits for enough free slots, the others for it.
A lease ends by release, by expiry or with its driver process. A server that dies while leased is
removed from the router immediately and restarted; it returns to the router when it serves the
fleet's version. A server that is alive but does not answer is ended and restarted. The manager is
asyncio in one thread: between two awaits nothing changes its records.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.keeper import Waiting, ended_leases, holders
from engines.lease import Lease, LeaseBook
from engines.sglang.servers.slots import ServerSlots, Slot, architecture
from engines.sglang.spec import FleetSpec
from engines.weights.disk import load_folder
from infra.errors import EngineError, OutOfMemory

LEASE_TTL_S = 60.0
_PREPARE_S = 900.0
"""a new lease's first term, in which its servers start; over every bound on starting them"""
_WATCH_S = 1.0
_ASK_EVERY_S = 5.0
HUNG_S = 30.0
"""longest that a server's scheduler leaves a question open; it answers between two batches"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What a stage asks for. `driver` is the Ray job whose end also ends the lease."""

    spec: FleetSpec
    model: Path
    servers: int
    tp: int
    pool_servers: int
    holder: str
    driver: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class ServerGrant:
    """A lease on servers as its holder sees it."""

    lease_id: str
    token: int
    router_url: str
    server_urls: tuple[str, ...]
    ttl_s: float
    """the lease ends this long after its last renewal"""


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """A snapshot for people and tests."""

    servers: dict[str, int]
    """process id of each running server, by slot"""
    leases: tuple[tuple[str, int], ...]
    """holder and number of servers, oldest first"""
    waiting: int
    restarts: int


@dataclass(slots=True)
class _Fleet:
    """What the manager knows of a live lease. `version` is the newest that was seen served."""

    request: Request
    model: Path
    disk_version: int
    version: int
    down: set[str] = field(default_factory=lambda: set[str]())
    """slots that the router leaves out"""
    restarting: set[str] = field(default_factory=lambda: set[str]())
    asked: set[str] = field(default_factory=lambda: set[str]())
    """slots that are being asked whether they still work"""


class FleetManager:
    """See the module. Every public method is called through Ray."""

    def __init__(self, logs: str, ttl_s: float, hung_s: float) -> None:
        self._ttl_s, self._hung_s = ttl_s, hung_s
        self._slots = ServerSlots(Path(logs))
        self._book = LeaseBook()
        self._fleets: dict[str, _Fleet] = {}
        self._waiting = Waiting()
        self._jobs: set[asyncio.Task[None]] = set()
        self._restarts = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def lease(self, request: Request) -> ServerGrant:
        """Servers for the request's holder, serving its model as version 0.

        Raises EngineError if they do not come free in time or do not start.
        """
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._watch_leases())
        lease = await self._wait(request)
        try:
            router = await asyncio.to_thread(
                self._slots.prepare, lease.units, request.spec, request.model, request.tp, 0
            )
            # From now on the holder has to renew.
            self._book.renew(lease.id, lease.token, self._ttl_s, time.monotonic())
        except BaseException:
            self._book.release(lease.id, lease.token)
            self._waiting.changed()
            raise
        self._fleets[lease.id] = _Fleet(request, request.model, 0, 0)
        urls = tuple(self._slots[name].url for name in lease.units)
        return ServerGrant(lease.id, lease.token, router.url, urls, self._ttl_s)

    async def ping(self) -> None:
        """Answered by a keeper that does not hang."""

    async def renew(self, lease_id: str, token: int) -> None:
        self._book.renew(lease_id, token, self._ttl_s, time.monotonic())

    async def is_healthy(self, lease_id: str, token: int) -> bool:
        """Whether every server of the lease runs, and none is being restarted."""
        lease = self._book.check(lease_id, token, time.monotonic())
        slots = [self._slots[name] for name in lease.units]
        alive = await asyncio.to_thread(lambda: all(slot.is_alive for slot in slots))
        return alive and not self._fleets[lease_id].restarting

    async def load(self, lease_id: str, token: int, model: Path, version: int) -> None:
        """Let the fleet serve a HF folder of the same architecture as `version`."""
        lease = self._book.check(lease_id, token, time.monotonic())
        fleet = self._fleets[lease_id]
        request = fleet.request
        wanted = architecture(request.spec, model, request.tp)
        slots = [self._slots[name] for name in lease.units if name not in fleet.down]
        if all(slot.fits(wanted) for slot in slots):
            urls = [slot.url for slot in slots]
            await asyncio.to_thread(load_folder, model, urls, version)
        else:
            await asyncio.to_thread(
                self._slots.prepare, lease.units, request.spec, model, request.tp, version
            )
            fleet.down.clear()
        fleet.model, fleet.disk_version, fleet.version = model, version, version

    async def release(self, lease_id: str, token: int) -> None:
        lease = self._book.release(lease_id, token)
        self._fleets.pop(lease.id, None)
        self._waiting.changed()

    async def status(self) -> ManagerStatus:
        alive = [self._slots[name] for name in self._slots.grow(0) if self._slots[name].is_alive]
        return ManagerStatus(
            servers={slot.name: slot.server.pid for slot in alive if slot.server is not None},
            leases=tuple((lease.holder, len(lease.units)) for lease in self._book.leases),
            waiting=len(self._waiting),
            restarts=self._restarts,
        )

    async def retire(self) -> bool:
        """End the manager and its servers if it is not in use; False if it is."""
        import ray.actor

        idle = not self._book.leases and not self._waiting
        if idle:
            await asyncio.to_thread(self._slots.close)
            ray.actor.exit_actor()
        return idle

    async def _wait(self, request: Request) -> Lease:
        try:
            return await self._waiting.serve(lambda: self._grant(request), request.wait_s)
        except TimeoutError:
            raise EngineError(
                f"{request.servers} servers did not come free within {request.wait_s:.0f} s; held"
                f" by {holders(self._book)}. Wait for them, or raise resources.servers"
            ) from None

    async def _grant(self, request: Request) -> Lease | None:
        """A lease on free slots, those first whose server can take the model as it runs."""
        names = self._slots.grow(max(request.pool_servers, request.servers))
        wanted = architecture(request.spec, request.model, request.tp)
        free = [name for name in names if self._book.holder_of(name) is None]
        free.sort(key=lambda name: not self._slots[name].fits(wanted))
        if len(free) < request.servers:
            return None
        chosen = sorted(free[: request.servers])
        return self._book.grant(chosen, request.holder, _PREPARE_S, time.monotonic())

    async def _watch_leases(self) -> None:
        """Reclaim leases and repair fleets, as long as the manager lives."""
        while True:
            await asyncio.sleep(_WATCH_S)
            try:
                await self._reclaim()
                for lease in self._book.leases:
                    if lease.id in self._fleets:
                        await self._repair(lease, self._fleets[lease.id])
            except Exception:
                _log.exception("a check of the fleets failed; it will be repeated")

    async def _reclaim(self) -> None:
        drivers = {lease: fleet.request.driver for lease, fleet in self._fleets.items()}
        ended = await ended_leases(self._book, drivers)
        for lease in ended:
            _log.warning("reclaimed the lease of %s", lease.holder)
            self._fleets.pop(lease.id, None)
        if ended:
            self._waiting.changed()

    async def _repair(self, lease: Lease, fleet: _Fleet) -> None:
        """Take dead servers out, restart them, put them back when they serve what others do."""
        for name in lease.units:
            alive = await asyncio.to_thread(lambda slot: slot.is_alive, self._slots[name])
            if not alive and name not in fleet.restarting:
                fleet.down.add(name)
                fleet.restarting.add(name)
                await self._route(lease, fleet)
                self._spawn(self._restart(fleet, name))
        serving = [name for name in lease.units if name not in fleet.down]
        for name in set(serving) - fleet.asked:
            fleet.asked.add(name)
            self._spawn(self._ask(fleet, name))
        for name in serving:
            with suppress(EngineError, ValueError):
                fleet.version = max(fleet.version, await _version(self._slots[name]))
        for name in fleet.down - fleet.restarting:
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
        slot, request = self._slots[name], fleet.request
        _log.warning("%s died; restarting it", name)
        try:
            await asyncio.to_thread(slot.ensure, request.spec, fleet.model, request.tp)
            await asyncio.to_thread(load_folder, fleet.model, [slot.url], fleet.disk_version)
            self._restarts += 1
        except (EngineError, OutOfMemory):
            _log.exception("%s does not start; trying again", name)
            await asyncio.to_thread(slot.stop)  # as a dead one it is restarted
        finally:
            fleet.restarting.discard(name)

    async def _ask(self, fleet: _Fleet, name: str) -> None:
        """End a server that hangs: as a dead one it is seen and restarted."""
        server = self._slots[name].server
        try:
            if server is not None:
                await asyncio.to_thread(server.answer, self._hung_s)
                await asyncio.sleep(_ASK_EVERY_S)
        except EngineError as error:
            if server is not None and server.is_alive:
                _log.warning("%s hangs: %s", name, error)
                await asyncio.to_thread(server.stop)  # not its slot: that may have another by now
        finally:
            fleet.asked.discard(name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)


async def _version(slot: Slot) -> int:
    if slot.server is None:
        raise EngineError(f"{slot.name} has no server")
    return int(await asyncio.to_thread(lambda server: server.version, slot.server))
