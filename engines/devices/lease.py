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

    `token` grows with every grant of a book, so that of two leases on one unit the higher wins.
    Example: Lease("9f2c", 7, ("rank-0", "rank-1"), "stage-rl-ab12-a1", "02000000", 1060.0)
    """

    id: str
    token: int
    units: tuple[str, ...]
    holder: str
    driver: str
    """the Ray job of the holder's process"""
    expires: float
    """seconds on the clock of the book's owner"""


class LeaseBook:
    """Which holder has which unit. All times are seconds on one clock that the caller chooses."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._by_unit: dict[str, str] = {}
        self._last_token = 0

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All live leases, oldest grant first; an expired one counts until `end_lost` ends it."""
        return tuple(self._leases.values())

    def holder_of(self, unit: str) -> Lease | None:
        lease_id = self._by_unit.get(unit)
        return None if lease_id is None else self._leases[lease_id]

    def grant(
        self, units: Iterable[str], holder: str, driver: str, ttl: float, now: float
    ) -> Lease | None:
        """All of `units` for `ttl` seconds, or None if any of them is leased.

        A unit of an expired lease stays leased until `end_lost` ends it: its owner must first see
        what state the old holder left it in.
        """
        wanted = tuple(dict.fromkeys(units))
        if not wanted:
            raise ValueError("a lease needs at least one unit")
        if any(unit in self._by_unit for unit in wanted):
            return None
        self._last_token += 1
        lease = Lease(uuid4().hex, self._last_token, wanted, holder, driver, now + ttl)
        self._leases[lease.id] = lease
        self._by_unit.update(dict.fromkeys(wanted, lease.id))
        return lease

    def check(self, lease_id: str, token: int, now: float) -> Lease:
        """The lease, if it still holds; raises LeaseLost if it ended or the token is stale."""
        lease = self._known(lease_id, token)
        if now >= lease.expires:
            raise LeaseLost(
                f"the lease of {lease.holder} on {', '.join(lease.units)} expired"
                f" {now - lease.expires:.1f} s ago: its holder stopped renewing it"
            )
        return lease

    def renew(self, lease_id: str, token: int, ttl: float, now: float) -> Lease:
        """The same lease until `now + ttl`; raises LeaseLost as `check` does."""
        lease = replace(self.check(lease_id, token, now), expires=now + ttl)
        self._leases[lease_id] = lease
        return lease

    def release(self, lease_id: str, token: int) -> Lease:
        """End a lease; returns it as it was. Raises LeaseLost if it had ended before."""
        lease = self._known(lease_id, token)
        self._drop(lease)
        return lease

    def end_lost(self, now: float, dead_drivers: Collection[str] = ()) -> tuple[Lease, ...]:
        """End every lease whose time is up or whose driver is dead; returns them, oldest first."""
        lost = tuple(x for x in self.leases if now >= x.expires or x.driver in dead_drivers)
        for lease in lost:
            self._drop(lease)
        return lost

    def _known(self, lease_id: str, token: int) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseLost(
                f"no lease {lease_id[:8]} (token {token}): it was released, expired,"
                " or its owner restarted; lease again"
            )
        if lease.token != token:
            raise LeaseLost(
                f"stale token {token} for lease {lease_id[:8]}, which has token {lease.token}:"
                " someone else holds it now"
            )
        return lease

    def _drop(self, lease: Lease) -> None:
        del self._leases[lease.id]
        for unit in lease.units:
            del self._by_unit[unit]
