"""What an RL stage says of its result at its end: all that a green state would hide."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from engines.algorithms.parts import Need
from infra.errors import TrainingStopped
from infra.store.stage_warning import StageWarning
from tasks.series import FEWEST_POINTS, Series
from tasks.updates import Updates
from tasks.verdicts import SOLVED, Verdicts

_WINDOW = 3
_COLLAPSED = 0.001
"""nats a token"""
_ALIKE = 1e-4
"""nats a token between student and teachers"""


def warnings_of(
    updates: Updates,
    verdicts: Verdicts,
    filtered: Mapping[str, int],
    series: Series,
    needs: Collection[Need],
) -> list[StageWarning]:
    """`filtered`: groups that were dropped, by reason; `needs`: of the advantage. Raises
    TrainingStopped where nothing was trained, unless the policy solved its problems from the
    beginning."""
    if not updates.made and not verdicts.is_solved:
        raise TrainingStopped(
            f"nothing was trained: none of {updates.skipped} steps made an update, as"
            f" {verdicts.nothing_learned(filtered)}"
        )
    updates.require_gradient(
        "The advantages are all 0: look at the rewards, the filter and the teachers"
    )
    found = [*_skipped(updates, verdicts, filtered), *verdicts.warnings(needs)]
    return [*found, *updates.warnings(), *_collapsed(series), *_agreed(series)]


def _skipped(
    updates: Updates, verdicts: Verdicts, filtered: Mapping[str, int]
) -> Iterator[StageWarning]:
    if not updates.made:
        yield StageWarning(
            what="no step made an update: the model is the one that the stage began with",
            cause="it solves the problems already, so that the rewards of a group are equal",
            advice="draw harder problems, or try the reward: it may call every answer right",
        )
    elif updates.skipped:
        steps = updates.made + updates.skipped
        yield StageWarning(
            what=f"{updates.skipped} of {steps} steps made no update",
            cause=verdicts.nothing_learned(filtered),
            advice="draw other problems, more of them (`oversample`, `refill_rounds`), or more"
            " rollouts of each (`group_size`)",
            figures={"steps": steps, "skipped": updates.skipped},
        )


def _collapsed(series: Series) -> Iterator[StageWarning]:
    entropies, outcomes = series.last("entropy", _WINDOW), series.last("outcome_mean", _WINDOW)
    if len(entropies) < _WINDOW or not outcomes:
        return
    entropy, outcome = sum(entropies) / len(entropies), sum(outcomes) / len(outcomes)
    if entropy < _COLLAPSED and outcome < SOLVED:
        yield StageWarning(
            what=f"the policy's entropy fell to {entropy:.2g} nats a token at a mean outcome of"
            f" {outcome:.3f}",
            cause="its rollouts of one problem are all alike, so it explores nothing any more",
            advice="lower the learning rate, clip higher, or stop earlier",
            figures={"entropy": entropy, "outcome": outcome},
        )


def _agreed(series: Series) -> Iterator[StageWarning]:
    """Of teachers: a student that says the same from the beginning learns nothing."""
    distances = series.last("teacher_kl", 2 * FEWEST_POINTS)
    if distances and max(map(abs, distances)) < _ALIKE:
        yield StageWarning(
            what=f"student and teachers were never further apart than {_ALIKE:g} nats a token",
            cause="the teachers say what the student says already",
            advice="use teachers that were trained further",
            figures={"teacher_kl": distances[0]},
        )
