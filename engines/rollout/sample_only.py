"""Sample rollouts of many problems concurrently with fixed weights. Nothing is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from engines.rollout.drivers.live_domain import LiveDomain
from engines.rollout.records.journal import Finished, RolloutJournal
from engines.rollout.rolls_groups import RollsGroups
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
) -> list[list[Rollout]]:
    """`samples` judged rollouts of each problem, in order of the problems.

    `label` tells this sweep's rollouts from those of others with the same problems and weights.
    Every generated token must come from weights `kept.version`; raises EngineError when one does
    not. The seeds do not depend on the version: models are compared on the same random numbers.
    """
    groups = await asyncio.gather(
        *[
            roller.roll_group(
                domain,
                p,
                samples,
                temperature=temperature,
                group_id=f"{label}/{p.id}" if label else p.id,
                seed_name=p.id,
                known=kept.known,
                on_finished=kept.keep,
            )
            for p in problems
        ]
    )
    for rollout in (r for group in groups for r in group):
        strange = rollout.weight_versions - {kept.version}
        if strange:
            raise EngineError(
                f"rollout {rollout.id} was sampled from weights {sorted(strange)} "
                f"while {kept.version} were loaded: another writer uses this fleet"
            )
    return groups
