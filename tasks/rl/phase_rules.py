"""Settings of the phases of an RL stage, and what no phase can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from infra.config import Config, PerStep, Steps
from tasks.rl.part_specs import DataSourceSpec
from tasks.screen.spec import Pool

if TYPE_CHECKING:
    from tasks.rl.spec import RlSettings


class Plateau(Config):
    """Scores on held-out problems that rise no more."""

    evaluations: int = Field(default=3, ge=1)
    """scores in a row that are not above the best one before them by more than `gain`"""
    gain: float = Field(default=0.01, ge=0, lt=1)
    """what a score must be above the best one to count as a rise; it is the mean over domains, from
    0 to 1"""


class Phase(Config):
    """Part of a stage that draws the problems of some of a `screen`'s pools. The first of
    `until_step` and `plateau` that comes true ends it."""

    pools: list[Pool] = Field(min_length=1)
    """which problems it draws, e.g. `[hard]`"""
    group_size: PerStep | None = None
    """rollouts per problem; None: the stage's"""
    longest_prompts: float = Field(default=1.0, gt=0, le=1)
    """share of each domain's problems that it keeps, those with the longest prompts; 0.5 drops the
    shorter half"""
    until_step: Steps | None = None
    """its last step, counted from the stage's first"""
    plateau: Plateau | None = None
    """ends it when scores on held-out problems rise no more; the stage needs `evaluate`"""


def phase_problems(settings: RlSettings) -> Iterator[str]:
    """Yield what no phase of a stage can do."""
    phases = settings.phases or []
    if phases and settings.samples_beside_training:
        yield (
            "phases: above max_staleness 0 the clock decides which tickets a phase has, so a"
            " resumed stage would draw other problems; set `max_staleness: 0`, or"
            " `partial_rollout_tokens`"
        )
    if phases and settings.data_source != DataSourceSpec():
        yield "phases: they say which problems are drawn; leave `data_source` out"
    before = 0
    for number, phase in enumerate(phases):
        at, is_last = f"phases.{number}", number == len(phases) - 1
        ends = phase.until_step is not None or phase.plateau is not None
        if is_last and ends:
            yield f"{at}: the last phase has no end; leave `until_step` and `plateau` out"
        elif not is_last and not ends:
            yield f"{at}: nothing ends it; write `until_step` or `plateau`"
        if phase.plateau is not None and settings.evaluate is None:
            yield f"{at}.plateau: there are no scores to look at; write `evaluate` for the stage"
        elif phase.plateau is not None and phase.until_step is None:
            yield from _no_plateau(f"{at}.plateau", phase.plateau, settings)
        if phase.until_step is not None and not before < phase.until_step < settings.steps:
            yield (
                f"{at}.until_step: {phase.until_step} is not above {before}, where the phase before"
                f" it ends at the latest, and below the stage's {settings.steps} steps"
            )
        before = phase.until_step or before
        if phase.group_size == 1 and {"spread", "components"} & settings.algorithm.needs:
            yield (
                f"{at}.group_size: advantage {settings.algorithm.advantage.kind} compares the"
                " rollouts of a group, and a group of one gives no gradient; write 2 or more"
            )


def _no_plateau(at: str, plateau: Plateau, settings: RlSettings) -> Iterator[str]:
    """A score after one step is there at the end of the next, and a phase that ends with the
    stage's last step ends nothing."""
    assert settings.evaluate is not None
    every, wanted = settings.evaluate.every, plateau.evaluations + 1
    before = -(-settings.critic_only_steps // every)  # of the policy that the stage begins with
    in_time = max(0, (settings.steps - 2) // every + 1 - before) if settings.steps > 1 else 0
    if in_time < wanted:
        yield (
            f"{at}: takes {wanted} scores, and the stage has {in_time} in time, one every"
            f" {every} of its {settings.steps} steps, so the phase would never end by it; lower"
            " `evaluate.every` or `evaluations`, or write `until_step`"
        )
