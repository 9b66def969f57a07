"""The reward that takes a library's own score."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.types import Message, Problem, Status, Transcript, Verdict
from infra.errors import InputError
from infra.libraries.library import SCORE_FILE
from rewards.library_score import LibraryScore

pytestmark = pytest.mark.unit


async def judged(score: float | None, parts: dict[str, float], **options: Any) -> Verdict:
    files = {SCORE_FILE: json.dumps({"score": score, "parts": parts})}
    problem = Problem("p", "verifiers", (Message("user", "x"),))
    transcript = Transcript(problem, (), Status.COMPLETED, 1, files=files)
    return await LibraryScore(**options)(transcript)


async def test_the_score_is_the_tasks_between_its_bounds() -> None:
    assert await judged(0.5, {"a": 2.0}) == Verdict(0.5, {"a": 2.0})
    assert (await judged(0.5, {"a": 2.0}, of="a", highest=4)).score == 0.5
    assert (await judged(-1.0, {}, lowest=-1.0)).score == 0.0
    assert (await judged(1.2, {}, highest=1.2)).score == 1.0


@pytest.mark.parametrize(
    ("score", "options", "said"),
    [
        (1.2, {}, "scored 1.2, outside 0 to 1; set `lowest` and `highest`"),
        (None, {}, "no score that is a number"),
        (1.0, {"of": "rigt"}, "no 'rigt'. Did you mean 'right'"),
    ],
)
async def test_what_is_no_outcome_is_named(
    score: float | None, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        await judged(score, {"right": 1.0}, **options)


async def test_wrong_bounds_and_other_drivers_are_named() -> None:
    with pytest.raises(InputError, match="lowest must be below highest, not 1 and 1"):
        LibraryScore(lowest=1)
    other = Transcript(Problem("p", "x", ()), (), Status.COMPLETED, 1)
    with pytest.raises(InputError, match="set the domain's `driver: library`"):
        await LibraryScore()(other)
