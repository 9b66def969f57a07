"""What a reward model's own test says of it, by margin and by length."""

from __future__ import annotations

import json
import math

import pytest

from curricula.rows.conversation import Conversation
from curricula.rows.pairs import Judged
from engines.algorithms.reward_losses import Compares
from engines.batching import Comparison, TokenSequence
from engines.types import Message
from tasks.preference.body import learned
from tasks.preference.row_faults import row_fault
from tasks.reward.held_out import PairGroup, held_out_report, held_out_warnings, report_of

pytestmark = pytest.mark.unit


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_report_tells_accuracy_by_margin_length_and_confidence() -> None:
    gaps, margins = [1.0, -1.0, 2.0, 0.0, 0.1], [0.1, 0.2, 3.0, 0.2, 0.1]
    found = held_out_report(gaps, margins, [3, -2, 5, 0, -1])
    # 50% and 52% sure: right once of 2; 73% sure: once of 2; 88% sure: once of 1.
    error = (abs(1 - (0.5 + sigmoid(0.1))) + abs(1 - 2 * sigmoid(1)) + abs(1 - sigmoid(2))) / 5
    assert found.figures == pytest.approx(
        {
            "held_out_accuracy": 3 / 5,
            "calibration_error": error,
            "accuracy_small_margin": 2 / 4,
            "accuracy_large_margin": 1.0,
            "accuracy_better_longer": 1.0,
            "accuracy_better_shorter": 0.5,
            "length_bias": 0.5,
        },
        abs=1e-12,
    )
    assert list(found.by_margin) == [
        PairGroup("margin 0.1", 2, 2), PairGroup("margin 0.2", 0, 2), PairGroup("margin 3", 1, 1),
    ]  # fmt: skip
    assert list(found.by_confidence) == [
        PairGroup("50% to 60% sure", 1, 2), PairGroup("70% to 80% sure", 1, 2),
        PairGroup("80% to 90% sure", 1, 1),
    ]  # fmt: skip
    (warning,) = held_out_warnings(found, has_margins=False)
    assert "learned to prefer longer answers" in str(warning)
    ((name, text),) = found.files()
    kept = json.loads(text)
    assert name == "held_out.json"
    assert kept["by_length"][0] == {"name": "the better answer is longer", "right": 2, "pairs": 2}


def test_groups_without_a_pair_have_no_accuracy() -> None:
    nothing = held_out_report([], [], [])
    assert not nothing.figures
    assert not list(nothing.files())
    assert not list(held_out_warnings(nothing, has_margins=True))
    alone = held_out_report([1e3], [0.0], [0])
    assert alone.figures == {"held_out_accuracy": 1.0, "calibration_error": 0.0}


def of_sizes(worth: list[float], sizes: list[int], margin: float = 0.0) -> Comparison:
    answers = [TokenSequence([1] * size, [1] * size) for size in sizes]
    return Comparison(answers, margin=margin, worth=worth)


def test_lists_good_answers_and_scores_are_reported() -> None:
    lists = [of_sizes([1, 3, 1], [4, 6, 5]), of_sizes([1, 0], [3, 3])]
    # pairs: 2.0 - 1.0 and 2.0 - 2.5 of the first, 0.3 of the second
    found = report_of("lists", lists, [1.0, 2.0, 2.5, 0.3, 0.0])
    assert found == held_out_report([1.0, -0.5, 0.3], [2.0, 2.0, 1.0], [2, 1, 0])
    pair = report_of("pairs", [of_sizes([1, 0], [3, 5], margin=0.4)], [1.0, 0.0])
    assert pair == held_out_report([1.0], [0.4], [-2])
    near = [of_sizes([1, 0], [3, 3], margin=margin) for margin in (0.0, 0.4)]
    slightly = report_of("pairs", near, [0.0, 1.0, 1.0, 0.0])
    assert slightly == held_out_report([-1.0, 1.0], [0.0, 0.4], [0, 0])
    assert slightly.figures["accuracy_small_margin"] == 0
    good = [of_sizes([worth], [3]) for worth in (1.0, 0.0, 0.5, 0.2)]
    alone = report_of("goodness", good, [2.0, 1.0, 9.0, -3.0])
    assert alone == held_out_report([2.0, -1.0, 3.0], [0.0] * 3, [0] * 3)
    # errors 0.5, -1, 0.5 of the scores 1, 3, 5, whose squared distances from 3 are 4, 0, 4
    scores = [of_sizes([worth], [3]) for worth in (1.0, 3.0, 5.0)]
    numbers = report_of("scores", scores, [1.5, 2.0, 5.5])
    assert numbers.figures == pytest.approx(
        {"held_out_error": 2 / 3, "held_out_explained": 1 - 1.5 / 8}
    )
    assert not list(numbers.files())


SAID = Conversation((Message("user", "Hi"), Message("assistant", "Yo")))
ROWS: dict[str, Judged] = {
    "pair": Judged((), ((0, 1, 0.0),), worth=(1.0, 0.0)),
    "ranks": Judged((), ((0, 1, 0.0),), worth=(-1.0, -2.0, -2.0)),
    "scores": Judged((), ((0, 1, 3.0),), worth=(7.0, 4.0), has_scores=True),
    "verdict": Judged((), (), True, (1.0,), has_scores=True),
    "score": Judged((), (), None, (7.0,), has_scores=True),
    "two": Judged((SAID, SAID), ((0, 1, 3.0),), worth=(7.0, 4.0), has_scores=True),
}


@pytest.mark.parametrize(
    ("compares", "taken", "said"),
    [
        ("pairs", {"pair", "ranks", "scores", "two"}, {"verdict": "`kto` and `binary`"}),
        (
            "lists",
            {"pair", "ranks", "scores", "two"},
            {"score": "which `regression` learns"},
        ),
        (
            "verdicts",
            {"pair", "ranks", "scores", "two", "verdict"},
            {"score": "`label`, true or false"},
        ),
        ("goodness", {"pair", "two", "verdict"}, {"ranks": "not from 0 to 1"}),
        ("scores", {"scores", "two", "verdict", "score"}, {"pair": "no score of each"}),
    ],
)
def test_a_row_that_a_loss_cannot_learn_is_refused(
    compares: Compares, taken: set[str], said: dict[str, str]
) -> None:
    faults = {name: row_fault(row, compares) for name, row in ROWS.items()}
    assert {name for name, fault in faults.items() if not fault} == taken
    assert all(part in faults[name] for name, part in said.items())


def test_a_model_that_is_too_sure_is_told() -> None:
    found = held_out_report([5.0, -5.0] * 25, [0.0] * 50, [0] * 50)
    assert found.figures["calibration_error"] == pytest.approx(sigmoid(5) - 0.5)
    (warning,) = held_out_warnings(found, has_margins=False)
    assert "differ by 49% on average, over 50 held-out pairs" in str(warning)
    (warning,) = held_out_warnings(found, has_margins=True)
    assert "by their margins" in str(warning)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"accuracy": 0.52, "margin": 0.1}, ["in 52% of the last comparisons"]),
        ({"accuracy": 0.9, "margin": -0.1}, ["by -0.1 on average"]),
        ({"accuracy": 0.9, "margin": 1, "chosen_drift": -0.5}, ["by 0.5 nats a token"]),
        ({"accuracy": 0.9, "margin": 1, "chosen_drift": -0.1}, []),
    ],
)
def test_a_run_that_learned_nothing_or_fell_apart_is_told(
    last: dict[str, float], said: list[str]
) -> None:
    found = [str(warning) for warning in learned(last)]
    assert len(found) == len(said)
    assert all(part in told for part, told in zip(said, found, strict=True))
