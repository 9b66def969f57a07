"""Ranks of the pool while a stage holds them: one lease, renewed, whoever works on the ranks.

A stage that needs several groups takes the ranks of all of them at once: with a lease for each, two
stages could hold one and wait for the other's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from engines.keeper import grant_of, keep_renewing
from engines.megatron.ranks.calls import answers
from engines.megatron.ranks.find_pool import open_pool
from engines.megatron.ranks.pool import LEASE_TTL_S, RankGrant
from engines.raylink import driver_id
from engines.types import Sample
from infra.errors import EngineError, InputError, LeaseLost, TributaryError

POOL_S = 30.0


class RankLease:
    """Made by `take`, ended by `release`. After a fault the ranks are killed on release."""

    def __init__(self, pool: Any, grant: RankGrant) -> None:
        self.grant = grant
        self.fault: TributaryError | None = None
        self._pool = pool
        self._released = False
        self._shipped: tuple[Sequence[Sample], Any] = ((), None)
        self._renewal = asyncio.create_task(self._renew())

    @classmethod
    async def take(
        cls, ranks: int, pool_ranks: int, holder: str, *, what: str, wait_s: float, pool: Any
    ) -> RankLease:
        """Wait for `ranks` ranks, first come first served; `what` needs them, for the message.

        Raises InputError if the pool can never have that many, EngineError if none came free
        within `wait_s`.
        """
        if ranks > pool_ranks:
            raise InputError(
                f"{what} ranks (tp x pp x cp x dp) but the pool has {pool_ranks}: raise"
                " resources.trainer_ranks or choose a smaller layout"
            )
        pool = pool or await asyncio.to_thread(open_pool)
        request = pool.lease.remote(ranks, pool_ranks, holder, driver_id(), wait_s)
        (grant,) = await grant_of(
            request, lambda call: answers([call], wait_s + POOL_S, "trainer pool", ())
        )
        return cls(pool, grant)

    def check(self) -> None:
        """Raise LeaseLost or EngineError when the ranks can no longer be used."""
        if self._released:
            raise LeaseLost("this trainer group was released; lease again")
        if self.fault is not None:
            raise EngineError(
                f"this trainer group broke before and must be released: {self.fault}"
            ) from self.fault

    def shipped(self, samples: Sequence[Sample]) -> Any:
        """A reference to a step's samples in Ray's store: put there once, freed by the next."""
        if self._shipped[0] is not samples or self._shipped[1] is None:
            import ray

            self._shipped = (samples, ray.put(samples))
        return self._shipped[1]

    async def release(self) -> None:
        """Give the ranks back; they are killed if a call failed. Safe to call twice."""
        if self._released:
            return
        self._released = True
        self._renewal.cancel()
        with suppress(asyncio.CancelledError):
            await self._renewal
        grant = self.grant
        done = self._pool.release.remote(grant.lease_id, grant.token, self.fault is None)
        # A lease that was lost, or whose pool died, is over already.
        with suppress(EngineError):
            await answers([done], POOL_S, "trainer pool", ())

    async def _renew(self) -> None:
        """Keep the lease until release; a lost lease ends the groups."""
        grant, every_s = self.grant, LEASE_TTL_S / 4

        async def renew() -> None:
            request = self._pool.renew.remote(grant.lease_id, grant.token)
            await answers([request], every_s, "trainer pool", ())

        def lost(error: LeaseLost) -> None:
            self.fault = error

        await keep_renewing(renew, every_s, lost)
