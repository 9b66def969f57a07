"""Draws a curriculum's problems: enough of them, the same again, and no split shares any."""

from __future__ import annotations

from collections.abc import Sequence

from engines.draws import draw_problems
from engines.types import Problem, Split
from flows.checks.trial.bounded_steps import Attempts
from flows.checks.trial.live_parts import LiveParts
from flows.checks.trial.overlap import overlaps
from infra.errors import InputError


def try_problems(
    live: LiveParts, counts: dict[Split, int], seed: int, attempts: Attempts
) -> list[Problem]:
    """Those that were drawn; none where one of the splits cannot be drawn right."""
    at, drawn = f"{live.where}.curriculum", {}
    for split, count in counts.items():
        first = min(2, count)
        call = f"{live.name}.problems({split!r}, {first}, seed={seed})"
        fine, two = attempts.call(
            at, call, lambda s=split, n=first: draw_problems(live.curriculum, s, n, seed)
        )
        if not fine:  # the other splits would say the same
            return []
        call = f"{live.name}.problems({split!r}, {count}, seed={seed})"
        fine, problems = attempts.call(
            at, call, lambda s=split, n=count: draw_problems(live.curriculum, s, n, seed)
        )
        if not fine:
            return []
        drawn[split] = problems
        if two != problems[:first]:
            attempts.problems.append(
                f"{at}: {call}: gives different problems at the same positions when fewer are"
                " requested; position i must depend on split, seed and i alone"
            )
            return []
        call = f"{live.name}.problems({split!r}, 1, seed={seed}, start={first - 1})"
        attempts.call(
            at,
            call,
            lambda s=split, p=problems, n=first: _check_position(live, s, p, n, seed),
        )
    attempts.problems += [f"{at}: {live.name}: {line}" for line in overlaps(drawn)]
    return [problem for problems in drawn.values() for problem in problems]


def _check_position(
    live: LiveParts, split: Split, problems: Sequence[Problem], first: int, seed: int
) -> None:
    """A resumed stage draws from a position on."""
    again = draw_problems(live.curriculum, split, 1, seed, first - 1)[0]
    if again != problems[first - 1]:
        raise InputError(
            f"{live.name}: split {split}: the problem at position {first - 1} is"
            f" {problems[first - 1].id!r} when drawn from the start, and {again.id!r} with"
            f" start={first - 1}; a resumed stage would train on other problems. Let position i"
            " depend on split, seed and i alone"
        )
