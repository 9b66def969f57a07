"""The one owner of a cluster's devices: the detached Ray actor that stages lease engines from.

    open_owner -> lease(request) -> free units, made to serve its terms -> Grant
               -> the stage works and renews -> release -> the units stay warm for the next stage

Requests of one kind are served in order of arrival: the first waits for enough free units, and all
others wait for it. A stage that has trainer and servers on the same GPUs has these alone. A unit is
*leased*, *busy* (starting, or being given back), or free. A lease ends by release, by expiry (its
holder stopped renewing) or with its driver's process. The owner is asyncio in one thread: between
two awaits nothing else changes its records.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from engines.devices.host_agent import HostAgent
from engines.devices.lease import Lease, LeaseBook
from engines.devices.ray_cluster import dead_drivers
from engines.devices.units import KINDS, SETTINGS, Grant, Kind, OwnerSettings, Request, Units
from infra.errors import EngineError
from infra.hooks import resolve
from infra.processes.coroutines import all_or_first_error

_T = TypeVar("_T")
_WATCH_S = 1.0
_LOOK_S = 0.05
_log = logging.getLogger(__name__)
_Granted: TypeAlias = list[tuple[Lease, Any]]
"""leases, each with the terms of its request"""


class RequestQueue:
    """Requests in order of arrival: the first is tried again at every change, others wait for it.

    For one event loop.
    """

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._change = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    async def serve(self, attempt: Callable[[], _T | None], wait_s: float) -> _T:
        """The first answer of `attempt` that is not None; raises TimeoutError after `wait_s`."""
        request = object()
        self._queue.append(request)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    change = self._change  # taken first: a change during the attempt counts
                    if self._queue[0] is request and (answer := attempt()) is not None:
                        return answer
                    await change.wait()
        finally:
            self._queue.remove(request)
            self.notify_change()

    def notify_change(self) -> None:
        """Something came free: let the first request look again."""
        self._change.set()
        self._change = asyncio.Event()


@dataclass(frozen=True, slots=True)
class KindStatus:
    """A snapshot of one kind, for people and tests."""

    size: int
    ready: int
    """free units with a process"""
    running: dict[str, int]
    """process id of each unit that has one"""
    leases: tuple[tuple[str, int], ...]
    """holder and number of units, oldest first"""
    waiting: int
    restarts: int


@dataclass(slots=True)
class _Pool:
    """The units of one kind, and who waits for them."""

    units: Units
    book: LeaseBook = field(default_factory=LeaseBook)
    queue: RequestQueue = field(default_factory=RequestQueue)
    busy: set[str] = field(default_factory=set[str])

    @property
    def free(self) -> list[str]:
        names = self.units.grow(0)
        return [name for name in names if name not in self.busy and not self.book.holder_of(name)]

    @property
    def is_idle(self) -> bool:
        return not self.book.leases and not self.queue


def _grant(
    book: LeaseBook, request: Request, names: Sequence[str], gpus: frozenset[int], is_placed: bool
) -> Lease:
    """Grant a lease. Its holder renews it from when its units are prepared, for which they have own
    bounds."""
    lease = book.grant(
        names, request.holder, request.driver, math.inf, 0.0, gpus, request.is_sole, is_placed
    )
    assert lease is not None, "its units are free"
    return lease


class DeviceOwner:
    """See the module. Every public method is called through Ray."""

    def __init__(self, settings: OwnerSettings) -> None:
        self._settings = settings
        self._agent = HostAgent(settings.logs, settings.num_gpus)
        self._pools: dict[Kind, _Pool] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def ping(self) -> None:
        """Answered by an owner that does not hang."""

    async def prewarm(self, kind: Kind, pool: int) -> None:
        """Start what a lease of the kind would start, up to `pool` units, and do not wait."""
        await self._look_at_hosts()
        of_kind = self._pool(kind)
        of_kind.units.grow(pool)
        running = of_kind.units.running()
        for name in of_kind.free:
            if name not in running:
                self._occupy(of_kind, name, of_kind.units.warm(name))

    async def lease(self, request: Request) -> Grant:
        """Units for the request's holder, which serve its terms.

        Raises EngineError if they do not come free in time or do not start.
        """
        (grant,) = await self.lease_all([request])
        return grant

    async def lease_all(self, requests: Sequence[Request]) -> list[Grant]:
        """Lease units for several roles of one holder, all of one kind, each with a lease of its
        own: they are granted at once, as two holders of half of theirs would wait for each other.

        Raises InputError if there can never be that many.
        """
        kind, count = requests[0].kind, sum(request.count for request in requests)
        await self.prewarm(kind, max(count, *(request.pool for request in requests)))
        pool = self._pool(kind)
        granted = await self._wait(pool, requests)
        try:
            preparing = [self._prepare(pool, lease, terms) for lease, terms in granted]
            uses = await all_or_first_error(preparing)
        except BaseException:
            for lease, _ in granted:
                pool.book.release(lease.id)
                self._give_back(pool, lease, is_clean=False)
            raise
        for lease, _ in granted:  # from now on the holder has to renew
            pool.book.renew(lease.id, self._settings.ttl_s, time.monotonic())
        ttl_s = self._settings.ttl_s
        return [Grant(x.id, ttl_s, use) for (x, _), use in zip(granted, uses, strict=True)]

    async def _prepare(self, pool: _Pool, lease: Lease, terms: Any) -> Any:
        await self._make_room(lease)
        return await pool.units.prepare(lease, terms)

    async def prepare(self, kind: Kind, lease_id: str, terms: Any) -> Any:
        """Let the units of a lease serve other terms."""
        lease = self._pool(kind).book.check(lease_id, time.monotonic())
        return await self._pool(kind).units.prepare(lease, terms)

    async def renew(self, kind: Kind, lease_id: str) -> None:
        self._pool(kind).book.renew(lease_id, self._settings.ttl_s, time.monotonic())

    async def use(self, kind: Kind, lease_id: str) -> Any | None:
        """Return what the holder needs to use the units, as it is now; None unless every unit
        works.
        """
        pool = self._pool(kind)
        return await pool.units.use(pool.book.check(lease_id, time.monotonic()))

    async def release(self, kind: Kind, lease_id: str, is_clean: bool) -> None:
        """End a lease. Nobody knows what units are doing that are not `is_clean`."""
        pool = self._pool(kind)
        self._give_back(pool, pool.book.release(lease_id), is_clean)

    async def status(self, kind: Kind) -> KindStatus:
        pool = self._pool(kind)
        running = dict(pool.units.running())
        return KindStatus(
            size=len(pool.units.grow(0)),
            ready=sum(name in running for name in pool.free),
            running=running,
            leases=tuple((lease.holder, len(lease.units)) for lease in pool.book.leases),
            waiting=len(pool.queue),
            restarts=pool.units.restarts,
        )

    async def end_idle(self, kind: Kind) -> bool:
        """End all processes of a kind if none is in use; False if one is."""
        if (pool := self._pools.get(kind)) is None:
            return True
        if not pool.is_idle:
            return False
        del self._pools[kind]
        while pool.busy:  # a unit that starts now would outlive the others
            await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(pool.units.close)
        return True

    async def retire(self) -> bool:
        """End the owner and all its engines if none is in use; False if one is."""
        import ray.actor

        is_idle = all(pool.is_idle for pool in self._pools.values())
        if is_idle:
            await asyncio.to_thread(self._agent.close)
            ray.actor.exit_actor()  # ranks are owned by it and end with it
        return is_idle

    def _pool(self, kind: Kind) -> _Pool:
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        if kind not in self._pools:
            make = resolve("kind of unit", KINDS[kind], {})
            self._pools[kind] = _Pool(make(self._agent, self._settings))
        return self._pools[kind]

    async def _wait(self, pool: _Pool, requests: Sequence[Request]) -> _Granted:
        wait_s, count = requests[0].wait_s, sum(request.count for request in requests)
        try:
            return await pool.queue.serve(lambda: self._granted(pool, requests), wait_s)
        except TimeoutError:
            kind = requests[0].kind
            holders = ", ".join(lease.holder for lease in pool.book.leases) or "nobody"
            raise EngineError(
                f"{count} of {len(pool.units.grow(0))} {kind}s did not come free"
                f" within {wait_s:.0f} s; held by {holders}. Wait for them, or raise"
                f" {SETTINGS[kind]}"
            ) from None

    def _granted(self, pool: _Pool, requests: Sequence[Request]) -> _Granted | None:
        """Return a lease for each request, with its terms; none of them if one has to wait."""
        placed = pool.units.place(requests, self._taken(pool, requests[0].holder))
        if placed is None:
            return None
        free = set(pool.free)
        chosen: list[tuple[Sequence[str], frozenset[int]]] = []
        for request in placed:
            gpus = {name: pool.units.gpus(name, request) for name in pool.free if name in free}
            fitting = [x for x, own in gpus.items() if not self._is_excluded(pool, request, own)]
            names = pool.units.choose(fitting, request)
            if len(names) < request.count:
                return None
            free -= set(names)
            chosen.append((names, frozenset[int]().union(*(gpus[name] for name in names))))
        return [
            (
                _grant(pool.book, request, names, own, is_placed=request not in requests),
                request.terms,
            )
            for request, (names, own) in zip(placed, chosen, strict=True)
        ]

    def _taken(self, pool: _Pool, holder: str) -> frozenset[int]:
        """GPUs that other servers have, or stages that share theirs with themselves."""
        others = (x for each in self._pools.values() for x in each.book.leases if x.is_sole)
        leases = [*pool.book.leases, *(x for x in others if x.holder != holder)]
        return frozenset[int]().union(*(lease.gpus for lease in leases))

    def _is_excluded(self, pool: _Pool, request: Request, gpus: frozenset[int]) -> bool:
        leases = (lease for each in self._pools.values() for lease in each.book.leases)
        if any(lease.excludes(request.holder, gpus, request.is_sole) for lease in leases):
            return True
        placed = (lease for lease in pool.book.leases if lease.is_placed)
        return any(not lease.gpus.isdisjoint(gpus) for lease in placed)

    async def _make_room(self, lease: Lease) -> None:
        """Have idle units on the lease's GPUs give their memory back: servers stay warm with it."""

        def in_the_way(pool: _Pool, names: Iterable[str]) -> list[str]:
            return [x for x in names if not lease.gpus.isdisjoint(pool.units.held_gpus(x))]

        while any(in_the_way(pool, pool.busy) for pool in self._pools.values()):
            await asyncio.sleep(_LOOK_S)  # one that is given back is idle soon
        asked = [(p, name) for p in self._pools.values() for name in in_the_way(p, p.free)]
        for pool, name in asked:
            self._occupy(pool, name, pool.units.free_memory(name))
        while any(name in pool.busy for pool, name in asked):
            await asyncio.sleep(_LOOK_S)

    async def _watch(self) -> None:
        """End lost leases and repair units, as long as the owner lives."""
        while True:
            await asyncio.sleep(_WATCH_S)
            try:
                await self._look_at_hosts()
                await self._end_lost_leases()
                for pool in list(self._pools.values()):
                    for name in await pool.units.repair(pool.book.leases, pool.free):
                        if name in pool.free:  # nobody leased it meanwhile
                            self._occupy(pool, name, pool.units.give_back(name, is_clean=False))
            except Exception:
                _log.exception("a check of the units failed; it will be repeated")

    async def _look_at_hosts(self) -> None:
        try:
            await asyncio.to_thread(self._agent.hosts.look)
        except Exception:  # the cluster's head is away: those that were known are
            _log.warning("the cluster's head does not say which hosts there are")

    async def _end_lost_leases(self) -> None:
        drivers = {x.driver for pool in self._pools.values() for x in pool.book.leases}
        try:
            dead = await asyncio.to_thread(dead_drivers, drivers)
        except Exception:  # the cluster's head is away: expiry still holds
            dead = set[str]()
        for pool in self._pools.values():
            for lease in pool.book.end_lost(time.monotonic(), dead):
                _log.warning("ended the lost lease of %s", lease.holder)
                self._give_back(pool, lease, is_clean=False)

    def _give_back(self, pool: _Pool, lease: Lease, is_clean: bool) -> None:
        pool.units.end_lease(lease)
        for name in lease.units:
            self._occupy(pool, name, pool.units.give_back(name, is_clean))

    def _occupy(self, pool: _Pool, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something to a unit that nobody holds; until then nobody can lease it."""
        pool.busy.add(name)

        async def run() -> None:
            try:
                await work
            except Exception as error:  # told to whoever leases it next
                _log.warning("%s: %s", name, error)
            finally:
                pool.busy.discard(name)
                for each in self._pools.values():  # its GPUs may be what another kind waits for
                    each.queue.notify_change()

        task = asyncio.create_task(run())
        self._jobs.add(task)  # asyncio holds tasks weakly
        task.add_done_callback(self._jobs.discard)
