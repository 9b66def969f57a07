"""RollsGroups: what rolls a problem's group out, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from engines.rollout.drivers.live_domain import LiveDomain
from engines.rollout.records.journal import Finished
from engines.rollout.records.turn_journal import TicketTurns
from engines.rollout.window import Window
from engines.types import Problem, Rollout


class RollsGroups(Protocol):
    """`Roller` does it here, `WorkerPool` in rollout workers: with the same rollouts to the bit."""

    @property
    def window(self) -> Window:
        """How many rollouts of sweeps keep its servers busy."""
        ...

    async def roll_group(
        self,
        domain: LiveDomain,
        problem: Problem,
        size: int,
        *,
        temperature: float,
        group_id: str,
        seed_name: str,
        known: Mapping[str, Finished] = MappingProxyType({}),
        on_finished: Callable[[Finished], None] = lambda made: None,
        turns: TicketTurns | None = None,
    ) -> list[Rollout]:
        """See `Roller.roll_group`. Cancelled, it ends its rollouts. Raises EngineError."""
        ...
