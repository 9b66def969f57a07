"""Sample rollouts of many problems concurrently with fixed weights. Nothing is trained.

    problems ──▶ room in the roller's window? ──▶ roll_group ──▶ journal, result

However many problems there are, as many rollouts are under way as keep the servers busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.protocols import ThoughtBudget
from engines.rollout.records.journals import Finished, RolloutJournal
from engines.rollout.roller import RollsGroups, Window, judge_together
from engines.types import Problem, Rollout
from infra.errors import EngineError


@dataclass(frozen=True, slots=True)
class KeptRollouts:
    """One model's rollouts in a journal: those of earlier attempts, and where new ones go.

    The journal's number for them is the version of the weights.
    """

    journal: RolloutJournal
    version: int
    known: Mapping[str, Finished]

    @classmethod
    async def open(cls, journal: RolloutJournal, version: int) -> Self:
        found = await journal.read(version, version)
        usable = {
            name: f for name, f in found.items() if f.is_of(version, version) and not f.has_failed
        }
        return cls(journal, version, usable)

    def keep(self, rollout: Finished) -> None:
        self.journal.keep(self.version, rollout)


async def sample_rollouts(
    roller: RollsGroups,
    domain: LiveDomain,
    problems: Sequence[Problem],
    *,
    samples: int,
    temperature: float,
    kept: KeptRollouts,
    label: str = "",
    draw: int | str = 0,
    top_p: float = 1.0,
    thought: ThoughtBudget | None = None,
) -> list[list[Rollout]]:
    """`samples` judged rollouts of each problem, in order of the problems.

    `label` tells this sweep's rollouts from those of others with the same problems and weights.
    Every generated token must come from weights `kept.version`; raises EngineError when one does
    not. The seeds do not depend on the version: models are compared on the same random numbers.
    Every `draw` of the same problems has others.
    """

    async def roll(problem: Problem) -> list[Rollout]:
        rollouts = await roller.roll_group(
            domain,
            problem,
            samples,
            temperature=temperature,
            group_id=f"{label}/{problem.id}" if label else problem.id,
            seed_name=f"{problem.id}/{draw}" if draw else problem.id,
            known=kept.known,
            on_finished=kept.keep,
            top_p=top_p,
            thought=thought,
        )
        return await judge_together(domain, rollouts)

    groups = await _each(problems, samples, roll, roller.window)
    for rollout in (r for group in groups for r in group):
        strange = rollout.weight_versions - {kept.version}
        if strange:
            raise EngineError(
                f"rollout {rollout.id} was sampled from weights {sorted(strange)} "
                f"while {kept.version} were loaded: another writer uses this fleet"
            )
    return groups


async def _each(
    problems: Sequence[Problem],
    samples: int,
    roll: Callable[[Problem], Awaitable[list[Rollout]]],
    window: Window,
) -> list[list[Rollout]]:
    """In the order of the problems. The first error ends all others."""
    made: list[list[Rollout]] = [[] for _ in problems]

    async def one(at: int, places: int) -> None:
        try:
            made[at] = await roll(problems[at])
        finally:
            window.give_back(places)

    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as rolling:
            for at in range(len(problems)):
                rolling.create_task(one(at, await window.take(samples)))
    except BaseExceptionGroup as several:
        failed = several.exceptions[0]
    if failed is not None:
        raise failed
    return made
