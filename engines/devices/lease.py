"""Exclusive, fenced, expiring rights to named units (trainer ranks, servers).

The book of them has no clock, no threads, no I/O: its owner decides who waits, who is next and what
a reclaimed unit needs before it is used again. A holder takes a lease, keeps it by renewing,
notices its loss, and gives it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import uuid4

from engines.devices.ray_cluster import driver_id
from engines.devices.units import OPEN_OWNER, SETTINGS, Grant, Kind, Request
from engines.devices.waiting_time import answers
from infra.errors import EngineError, InputError, LeaseLost, TributaryError
from infra.hooks import resolve

CALL_S = 30.0
"""what the owner may take to answer a question about its books"""


@dataclass(frozen=True, slots=True)
class Lease:
    """One holder's right to its units until `expires`.

    Example: Lease("9f2c", ("rank-0", "rank-1"), "stage-rl-ab12-a1", "02000000", 1060.0)
    """

    id: str
    """never given twice: who comes with the id of a lease that ended has lost its units"""
    units: tuple[str, ...]
    holder: str
    driver: str
    """the Ray job of the holder's process"""
    expires: float
    """seconds on the clock of the book's owner"""
    gpus: frozenset[int] = frozenset()
    """of its units; none on a CPU"""
    is_sole: bool = False
    """whether no other holder may have units on these GPUs"""
    is_placed: bool = False
    """whether its GPUs were chosen for it, and do not follow from the names of its units"""

    def excludes(self, holder: str, gpus: frozenset[int], is_sole: bool) -> bool:
        """Return whether such a lease has to wait for the end of this one."""
        return (
            holder != self.holder and (self.is_sole or is_sole) and not gpus.isdisjoint(self.gpus)
        )


class LeaseBook:
    """Which holder has which unit. All times are seconds on one clock that the caller chooses."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Return all live leases, oldest grant first; an expired one counts until `end_lost` ends
        it."""
        return tuple(self._leases.values())

    def holder_of(self, unit: str) -> Lease | None:
        return next((lease for lease in self.leases if unit in lease.units), None)

    def grant(
        self,
        units: Iterable[str],
        holder: str,
        driver: str,
        ttl: float,
        now: float,
        gpus: frozenset[int] = frozenset(),
        is_sole: bool = False,
        is_placed: bool = False,
    ) -> Lease | None:
        """Grant all of `units` for `ttl` seconds, or None if any of them is leased.

        A unit of an expired lease stays leased until `end_lost` ends it: its owner must first see
        what state the old holder left it in.
        """
        wanted = tuple(dict.fromkeys(units))
        if not wanted:
            raise ValueError("a lease needs at least one unit")
        if any(self.holder_of(unit) for unit in wanted):
            return None
        lease = Lease(uuid4().hex, wanted, holder, driver, now + ttl, gpus, is_sole, is_placed)
        self._leases[lease.id] = lease
        return lease

    def check(self, lease_id: str, now: float) -> Lease:
        """The lease, if it still holds; raises LeaseLost if it ended."""
        lease = self._known(lease_id)
        if now >= lease.expires:
            raise LeaseLost(
                f"the lease of {lease.holder} on {', '.join(lease.units)} expired"
                f" {now - lease.expires:.1f} s ago: its holder stopped renewing it"
            )
        return lease

    def renew(self, lease_id: str, ttl: float, now: float) -> Lease:
        """Return the same lease until `now + ttl`; raises LeaseLost as `check` does."""
        lease = replace(self.check(lease_id, now), expires=now + ttl)
        self._leases[lease_id] = lease
        return lease

    def release(self, lease_id: str) -> Lease:
        """End a lease; returns it as it was. Raises LeaseLost if it had ended before."""
        return self._leases.pop(self._known(lease_id).id)

    def end_lost(self, now: float, dead_drivers: Collection[str] = ()) -> tuple[Lease, ...]:
        """End every lease whose time is up or whose driver is dead; returns them, oldest first."""
        lost = tuple(x for x in self.leases if now >= x.expires or x.driver in dead_drivers)
        for lease in lost:
            del self._leases[lease.id]
        return lost

    def _known(self, lease_id: str) -> Lease:
        if lease_id not in self._leases:
            raise LeaseLost(
                f"no lease {lease_id[:8]}: it was released, expired, or its owner restarted;"
                " lease again"
            )
        return self._leases[lease_id]


async def prewarm(kind: Kind, pool: int, owner: Any = None) -> None:
    """Start units in the background, so that the next lease finds them warm."""
    owner = owner or await _find_owner()
    await answers([owner.prewarm.remote(kind, pool)], CALL_S, f"prewarming {kind}s", ())


class StageLease:
    """Made by `take`, ended by `release`. After a fault its units are not given back as clean."""

    def __init__(self, owner: Any, kind: Kind, grant: Grant) -> None:
        self.use = grant.use
        self.fault: TributaryError | None = None
        self.on_lost: Callable[[LeaseLost], None] = lambda _: None
        self._owner, self._kind, self._grant = owner, kind, grant
        self._is_released = False
        self._renewal = asyncio.create_task(self._keep_renewing())

    @classmethod
    async def take(
        cls, request: Request, *, what: str, prepare_s: float, owner: Any = None
    ) -> Self:
        """Wait for units, first come first served, until they serve the request's terms.

        `what` needs them, for the message ("the trainer needs 2"); they take at most `prepare_s`
        to serve once they are free. Raises InputError if there can never be that many, EngineError
        if none came free in time or they do not start.
        """
        (lease,) = await cls.take_all([request], what=what, prepare_s=prepare_s, owner=owner)
        return lease

    @classmethod
    async def take_all(
        cls, requests: Sequence[Request], *, what: str, prepare_s: float, owner: Any = None
    ) -> list[Self]:
        """Take a lease for each of several roles of one holder, all of one kind, granted
        together."""
        kind, count = requests[0].kind, sum(request.count for request in requests)
        pool = max(request.pool for request in requests)
        if count > pool:
            raise InputError(
                f"{what} {kind}s but there are {pool}: raise {SETTINGS[kind]} or ask for fewer"
            )
        owner = owner or await _find_owner()
        call = owner.lease_all.remote([replace(each, driver=driver_id()) for each in requests])
        bound = requests[0].wait_s + prepare_s
        try:
            (grants,) = await answers([call], bound, f"leasing {kind}s", ())
        except asyncio.CancelledError:
            import ray

            ray.cancel(call)  # takes the requests back
            raise
        return [cls(owner, kind, grant) for grant in grants]

    def check(self) -> None:
        """Raise LeaseLost or EngineError when the units can no longer be used."""
        if self._is_released:
            raise LeaseLost("this lease was released; lease again")
        if self.fault is not None:
            raise EngineError(
                f"this lease broke before and must be released: {self.fault}"
            ) from self.fault

    async def prepare(self, terms: Any, timeout_s: float) -> None:
        """Let the units serve other terms."""
        self.use = await self._ask("prepare", terms, timeout_s=timeout_s)

    async def is_healthy(self) -> bool:
        """Return whether every unit works, and none is being restarted. Then `use` says where they
        are now: one may have moved to another host."""
        use = await self._ask("use")
        self.use = self.use if use is None else use
        return use is not None

    async def release(self) -> None:
        """Give the units back; they stay warm unless there was a fault. Safe to call twice."""
        if self._is_released:
            return
        self._is_released = True
        self._renewal.cancel()
        with suppress(asyncio.CancelledError):
            await self._renewal
        # A lease that was lost, or whose owner died, is over already.
        with suppress(EngineError):
            await self._ask("release", self.fault is None)

    async def _ask(self, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        asked: Callable[..., Any] = getattr(self._owner, method).remote
        call = asked(self._kind, self._grant.lease_id, *arguments)
        return (await answers([call], timeout_s, f"{method} of {self._kind}s", ()))[0]

    async def _keep_renewing(self) -> None:
        every_s = self._grant.ttl_s / 6
        error = await keep_renewing(lambda: self._ask("renew", timeout_s=CALL_S), every_s)
        self.fault = error
        self.on_lost(error)


async def _find_owner() -> Any:
    return await asyncio.to_thread(resolve("owner of devices", OPEN_OWNER, {}))


async def keep_renewing(renew: Callable[[], Awaitable[Any]], every_s: float) -> LeaseLost:
    """Renew a lease until cancelled, or until it is lost: then say why."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await renew()
        except LeaseLost as error:
            return error
        except EngineError:
            continue  # a busy owner or a head that is away: the lease's own end decides
