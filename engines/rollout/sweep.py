"""Sweep: roll many problems out under fixed weights, all at once. Nothing is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engines.rollout.episode import Roller, Rollout
from engines.rollout.seams import LiveDomain
from engines.types import Problem
from infra.errors import EngineError


async def sweep(
    roller: Roller,
    domain: LiveDomain,
    problems: Sequence[Problem],
    *,
    samples: int,
    temperature: float,
    version: int,
) -> list[list[Rollout]]:
    """`samples` judged rollouts of each problem, in order of the problems.

    Every generated token must come from weights `version`. Raises EngineError when one does not.
    The seeds do not depend on the version: models are compared on the same random numbers.
    """
    groups = await asyncio.gather(
        *[
            roller.roll_group(domain, p, samples, version=0, temperature=temperature)
            for p in problems
        ]
    )
    for rollout in (r for group in groups for r in group):
        strange = {v for v in rollout.sample.weight_versions if v >= 0} - {version}
        if strange:
            raise EngineError(
                f"rollout {rollout.sample.rollout_id} was sampled from weights {sorted(strange)} "
                f"while {version} were loaded: another writer uses this fleet"
            )
    return groups
