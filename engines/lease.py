"""Exclusive, fenced, expiring rights to named units (server slots, trainer ranks).

Pure book-keeping: no clock, no threads, no I/O. Who waits, who is next and what a reclaimed unit
needs before it is used again is the business of the actor that keeps the book.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import uuid4

from infra.errors import LeaseLost


@dataclass(frozen=True, slots=True)
class Lease:
    """One holder's right to its units until `expires`.

    `token` grows with every grant of a book, so that of two leases on one unit the higher wins.
    Example: Lease("9f2c", 7, ("rank-0", "rank-1"), "stage-rl-ab12-a1", 1060.0)
    """

    id: str
    token: int
    units: tuple[str, ...]
    holder: str
    expires: float
    """seconds on the clock of the book's keeper"""


class LeaseBook:
    """Which holder has which unit. All times are seconds on one clock that the caller chooses."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._held: dict[str, str] = {}
        self._last_token = 0

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All live leases, oldest grant first; an expired one counts until it is reclaimed."""
        return tuple(self._leases.values())

    def holder_of(self, unit: str) -> Lease | None:
        lease_id = self._held.get(unit)
        return None if lease_id is None else self._leases[lease_id]

    def grant(self, units: Iterable[str], holder: str, ttl: float, now: float) -> Lease | None:
        """All of `units` for `ttl` seconds, or None if any of them is held.

        A unit of an expired lease stays held until `expired` reclaims it: its keeper must first
        see what state the old holder left it in.
        """
        wanted = tuple(dict.fromkeys(units))
        if not wanted:
            raise ValueError("a lease needs at least one unit")
        if any(unit in self._held for unit in wanted):
            return None
        self._last_token += 1
        lease = Lease(uuid4().hex, self._last_token, wanted, holder, now + ttl)
        self._leases[lease.id] = lease
        self._held.update(dict.fromkeys(wanted, lease.id))
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
        """End a lease; returns it as it was. Raises LeaseLost if it was reclaimed before."""
        lease = self._known(lease_id, token)
        self._drop(lease)
        return lease

    def expired(self, now: float) -> tuple[Lease, ...]:
        """Reclaim every lease whose time is up and return them, oldest grant first."""
        ended = tuple(lease for lease in self._leases.values() if now >= lease.expires)
        for lease in ended:
            self._drop(lease)
        return ended

    def _known(self, lease_id: str, token: int) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseLost(
                f"no lease {lease_id[:8]} (token {token}): it was released, expired,"
                " or its keeper restarted; lease again"
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
            del self._held[unit]
