"""The example of a user's own expert: honest splits, a judge that its demonstrator satisfies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from engines.types import Message, Problem, Split, Status, Transcript

pytestmark = pytest.mark.unit

FILE = Path(__file__).parents[3] / "examples" / "fourth_expert" / "sorting.py"
SPLITS: tuple[Split, ...] = ("sft", "rl", "distill", "heldout")


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("fourth_expert_sorting", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _said(problem: Problem, *turns: Message) -> Transcript:
    return Transcript(problem, turns, Status.COMPLETED, 4)


async def test_a_right_demonstration_solves_its_problem_and_silence_does_not(example: Any) -> None:
    judge, order = example.SortedExactly(), example.InOrder()
    for shown in example.Sorting().demonstrations(20, 0):
        assert (await judge(_said(shown.problem, *shown.turns))).score == 1.0
        assert (await order(_said(shown.problem, *shown.turns))).score == 1.0
        assert (await judge(_said(shown.problem, Message("assistant", "")))).score == 0.0


async def test_the_noisy_demonstrator_errs_as_often_as_it_is_told_to(example: Any) -> None:
    judge = example.SortedExactly()
    shown = example.Sorting(noise=0.2).demonstrations(500, 0)
    right = [(await judge(_said(s.problem, *s.turns))).score for s in shown]
    assert sum(right) / len(right) == pytest.approx(0.8, abs=0.05)


def test_no_word_is_in_two_splits_whatever_the_seed(example: Any) -> None:
    curriculum = example.Sorting()
    words = {
        split: {p.messages[0].content for s in (0, 1) for p in curriculum.problems(split, 400, s)}
        for split in SPLITS
    }
    assert sum(map(len, words.values())) == len(set().union(*words.values()))


def test_held_out_words_are_distinct_from_any_position(example: Any) -> None:
    curriculum = example.Sorting()
    problems = curriculum.problems("heldout", 300, 0)
    assert len({p.messages[0].content for p in problems}) == 300
    assert curriculum.problems("heldout", 100, 0, start=200) == problems[200:]
    with pytest.raises(ValueError, match="distinct heldout words"):
        example.Sorting(length=1).problems("heldout", 10, 0)
