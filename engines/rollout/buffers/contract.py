"""What every buffer's rule must do, tried on a few waiting groups.

tributary test-hook my_buffer.py:MyRule
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engines.fault import Fault, guarded
from engines.rollout.buffers.take_rule import TakeRule, WaitingGroup, wrong_take

_COUNT = 4
"""groups of a step"""
_SEEDS = (1, 2, 3, 4)


def rule_faults(rule: TakeRule) -> list[Fault]:
    """Checks of a class with `take(waiting, count, seed)` and `keeps(taken)`."""
    return list(guarded(rule, _checks))


def example_waiting() -> list[WaitingGroup]:
    """Nine groups of two domains, of different spread, size, age, and number of steps that took
    them."""
    return [
        WaitingGroup(
            ticket=10 + 3 * i,
            domain="ab"[i % 2],
            problem_id=f"example/{i}",
            rewards=(0.0, i / 8, 1.0 if i % 3 else 0.0),
            outcomes=(0.0, float(i > 4), float(i % 3 > 0)),
            num_tokens=10 + 7 * i,
            age=i % 3,
            times_taken=(0, 0, 1)[i % 3],
        )
        for i in range(9)
    ]


def _checks(rule: TakeRule) -> Iterator[Fault]:
    for waiting in (example_waiting(), example_waiting()[:2], []):
        yield from _takes(rule, waiting)
    kept: list[object] = [rule.keeps(taken) for taken in _taken()]
    if any(not isinstance(answer, bool) for answer in kept):
        yield Fault("keeps() gives a bool", f"{kept}")
    elif kept != [rule.keeps(taken) for taken in _taken()]:
        yield Fault("answers by what it is given alone", "two calls of keeps() differ")


def _takes(rule: TakeRule, waiting: Sequence[WaitingGroup]) -> Iterator[Fault]:
    of = f"of {len(waiting)} waiting groups"
    answers = [[int(t) for t in rule.take(list(waiting), _COUNT, seed)] for seed in _SEEDS]
    wrong = [wrong_take(a, [group.ticket for group in waiting], _COUNT) for a in answers]
    if any(wrong):
        yield Fault("takes waiting groups, each once, at most a step's", f"{of}, {max(wrong)}")
        return
    if waiting and any(not answer for answer in answers):
        yield Fault("takes a group where one waits", f"{of}, none")
    again = [[int(t) for t in rule.take(list(waiting), _COUNT, seed)] for seed in _SEEDS]
    if again != answers:
        yield Fault(
            "answers by what it is given alone",
            f"{of}, two calls with the same seed differ; draw with random.Random(seed)",
        )


def _taken() -> list[WaitingGroup]:
    return [replace(group, times_taken=group.times_taken + 1) for group in example_waiting()]
