"""What is said where answers were judged and still nothing could be learned from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.types import Group, Problem, Status
from tasks.distill.body import check_counts
from tasks.domain_verdicts import Verdicts
from tasks.evaluate.cells import CellResult, warnings_of
from tests.parts.sample_parts import sample_of
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = pytest.mark.unit


def judged(rewards: Sequence[float], outcomes: Sequence[float], problem: int) -> Group:
    """A group of domain d with one rollout for each reward."""
    samples = [
        sample_of(
            f"p{problem}", "d", f"g{problem}", f"r{problem}.{n}", n, [1], [1], [-1.0], [0],
            Status.COMPLETED, rewards={"outcome": outcome}, reward=reward,
        )
        for n, (reward, outcome) in enumerate(zip(rewards, outcomes, strict=True))
    ]  # fmt: skip
    return Group(Problem(f"p{problem}", "d", ()), samples)


@pytest.mark.parametrize("needs", [("spread",), ("critic",)])
def test_an_outcome_that_was_never_above_0_is_said_though_other_rewards_teach(
    needs: Sequence[Any],
) -> None:
    verdicts = Verdicts()
    verdicts.observe([judged([0.0, 0.2], [0.0, 0.0], n) for n in range(4)])
    (warning,) = verdicts.warnings(needs)
    assert warning.what == "none of 8 rollouts of d had an outcome above 0"
    verdicts.observe([judged([0.0, 1.0], [0.0, 1.0], 4)])
    assert not list(verdicts.warnings(needs))


def test_a_reward_that_looks_at_the_problem_alone_is_said_to_every_advantage() -> None:
    verdicts = Verdicts()
    verdicts.observe([judged([n / 8] * 2, [n / 8] * 2, n) for n in range(7)])
    assert not list(verdicts.warnings(["critic"])), "7 groups may be so by chance"
    verdicts.observe([judged([0.5] * 2, [0.5] * 2, 7)])
    (warning,) = verdicts.warnings(["critic"])
    assert warning.what.endswith("earned the same, in each of 8 groups of d")
    (warning,) = verdicts.warnings(["spread"])
    assert warning.what == "8 of 8 groups of d taught nothing"
    alone = Verdicts()
    alone.observe([judged([n / 9], [n / 9], n) for n in range(9)])
    assert not list(alone.warnings(["critic"])), "one rollout of a problem shows nothing"


def test_a_domain_that_was_never_drawn_is_said() -> None:
    verdicts = Verdicts()
    assert not list(verdicts.warnings(["critic"], ["d", "e"])), "no step was made"
    verdicts.observe([judged([n / 9], [n / 9], n) for n in range(9)])
    (warning,) = verdicts.warnings(["critic"], ["d", "e"])
    assert warning.what == "no problem of e was rolled out"


def test_a_domain_in_which_no_model_was_ever_right_is_said() -> None:
    wrong = CellResult("m", "a", "score", 0.0, 0.0, 8, 9, 0.0, 0.0, 0.0, "", [[0.0]] * 8)
    (warning,) = warnings_of([wrong])
    assert warning.what == "no answer of any model in a was right, of 8"
    assert not list(warnings_of([replace(wrong, rollouts=7)])), "of 7 it may be chance"
    assert not list(warnings_of([wrong, replace(wrong, model="n", score=0.125)]))


@pytest.mark.parametrize(
    ("kept", "failure", "what", "why"),
    [
        (0, "", "no rollout of d is in the dataset, of 100 sampled", "lower `min_outcome`"),
        (0, "KeyError: 'answer'", "no rollout of d is", "verdicts failed: KeyError: 'answer'"),
        (1, "", "only 1 rollout of d is in the dataset, of 100 sampled", "the others: 99 as wrong"),
        (2, "", "", ""),
    ],
)
def test_a_dataset_of_next_to_nothing_is_said_with_its_cause(
    kept: int, failure: str, what: str, why: str, tmp_path: Path
) -> None:
    context = stage_context(tmp_path, "distill", {})
    counts = {"d": {"sampled": 100, "failed": 0, "wrong": 100 - kept, "kept": kept}}
    other = {"e": {"sampled": 4, "wrong": 0, "kept": 4}}
    check_counts(context, counts | other, {"d": failure} if failure else {})
    assert isinstance(context.reporter, ListReporter)
    said = [str(warning) for warning in context.reporter.kept]
    assert len(said) == bool(what)
    assert all(what in line and why in line for line in said)
