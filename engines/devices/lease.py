"""Exclusive, fenced, expiring rights to named units (trainer ranks, servers).

Pure book-keeping: no clock, no threads, no I/O. Who waits, who is next and what a reclaimed unit
needs before it is used again is the business of the owner that keeps the book.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from uuid import uuid4

from infra.errors import LeaseLost


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
        """Whether such a lease has to wait for the end of this one."""
        return (
            holder != self.holder and (self.is_sole or is_sole) and not gpus.isdisjoint(self.gpus)
        )


class LeaseBook:
    """Which holder has which unit. All times are seconds on one clock that the caller chooses."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All live leases, oldest grant first; an expired one counts until `end_lost` ends it."""
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
        """All of `units` for `ttl` seconds, or None if any of them is leased.

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
        """The same lease until `now + ttl`; raises LeaseLost as `check` does."""
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
