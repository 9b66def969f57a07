"""Ranks while a stage holds them: one lease, whoever works on the ranks.

A stage that needs several groups takes the ranks of all of them at once: with a lease for each, two
stages could hold one and wait for the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.devices.stage_lease import StageLease
from engines.devices.units import Request
from engines.types import Sample

_START_S = 600.0
"""what ranks may take to be warm: they are replaced once, each within its own bound"""


@dataclass(frozen=True, slots=True)
class RankTerms:
    """What a lease's ranks have to be."""

    tp: int = 1
    """so many neighbours, counted from the first, are on one host"""


class RankLease(StageLease):
    """A lease on ranks. After a fault they are killed on release."""

    _shipped: tuple[Sequence[Sample], Any] = ((), None)

    @classmethod
    async def take_ranks(
        cls,
        count: int,
        pool_ranks: int,
        holder: str,
        *,
        tp: int,
        what: str,
        wait_s: float,
        owner: Any,
        is_sole: bool = False,
    ) -> RankLease:
        """Wait for `count` ranks, of which `tp` neighbours at a time are on one host; raises as
        `take` does."""
        terms = RankTerms(tp)
        request = Request("rank", count, pool_ranks, holder, terms, wait_s, is_sole=is_sole)
        return await cls.take(request, what=what, prepare_s=_START_S, owner=owner)

    def shipped(self, samples: Sequence[Sample]) -> Any:
        """A reference to a step's samples in Ray's store: put there once, freed by the next."""
        if self._shipped[0] is not samples or self._shipped[1] is None:
            import ray

            self._shipped = (samples, ray.put(samples))
        return self._shipped[1]
