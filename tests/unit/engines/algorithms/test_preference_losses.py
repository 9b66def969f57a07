"""Losses on preferences: numbers worked out by hand, and gradients in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from engines.algorithms.preference_losses import (
    Answers,
    PreferenceLoss,
    has_reference,
    is_paired,
    loss_function,
)

pytestmark = pytest.mark.unit

CHOSEN, REJECTED = (-10.0, -12.0, 5), (-9.0, -8.0, 4)
"""logprob, the reference's, tokens: log ratios of 2 and -1"""


def loss_of(written: Any) -> PreferenceLoss:
    return TypeAdapter[PreferenceLoss](PreferenceLoss).validate_python(written)


def answers(*rows: tuple[float, float, int], good: list[bool] | None = None, z: float = 0.0):
    logprobs, reference, tokens = (
        torch.tensor(each, dtype=torch.float64) for each in zip(*rows, strict=True)
    )
    are_good = torch.tensor(good if good is not None else [True, False] * (len(rows) // 2))
    return Answers(logprobs.requires_grad_(), reference, tokens, are_good, z)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def log_odds(mean: float) -> float:
    return mean - math.log(1 - math.exp(mean))


@pytest.mark.parametrize(
    ("written", "loss", "rewards"),
    [
        ("dpo", -math.log(sigmoid(0.3)), (0.2, -0.1)),
        ({"beta": 0.5}, -math.log(sigmoid(1.5)), (1.0, -0.5)),
        (
            {"kind": "dpo", "label_smoothing": 0.1},
            -0.9 * math.log(sigmoid(0.3)) - 0.1 * math.log(sigmoid(-0.3)),
            (0.2, -0.1),
        ),
        ({"reference_free": True}, -math.log(sigmoid(0.1 * (-10 + 9))), (-1.0, -0.9)),
        (
            {"length_normalised": True, "beta": 5},
            -math.log(sigmoid(5 * (2 / 5 + 1 / 4))),
            (2.0, -1.25),
        ),
        ("ipo", (2 / 5 + 1 / 4 - 5) ** 2, (0.04, -0.025)),
        ({"kind": "ipo", "length_normalised": False}, (3 - 5) ** 2, (0.2, -0.1)),
        ("simpo", -math.log(sigmoid(2 * (-2 + 2.25) - 1)), (-4.0, -4.5)),
        ("orpo", 2 - 0.1 * math.log(sigmoid(log_odds(-2) - log_odds(-2.25))), (-0.2, -0.225)),
    ],
)
def test_a_pair_s_loss_is_the_paper_s(
    written: Any, loss: float, rewards: tuple[float, float]
) -> None:
    found = loss_function(loss_of(written))(answers(CHOSEN, REJECTED))
    assert found.losses_P.tolist() == pytest.approx([loss], abs=1e-9)
    assert found.rewards_A.tolist() == pytest.approx(rewards, abs=1e-9)
    is_right = rewards[0] > rewards[1]
    assert found.is_right_P.tolist() == [is_right]


def test_kto_judges_each_answer_against_the_baseline() -> None:
    kto = loss_function(loss_of({"kind": "kto", "beta": 0.5, "bad_weight": 2}))
    found = kto(answers(CHOSEN, REJECTED, CHOSEN, good=[True, False, False], z=1.0))
    good, bad, wrong = 1 - sigmoid(0.5 * (2 - 1)), 1 - sigmoid(0.5 * (1 + 1)), sigmoid(0.5)
    assert found.losses_P.tolist() == pytest.approx([good, 2 * bad, 2 * wrong], abs=1e-9)
    assert found.is_right_P.tolist() == [True, True, False]


LOSSES: list[Any] = [
    "dpo", {"label_smoothing": 0.2}, {"reference_free": True},
    {"length_normalised": True, "beta": 7}, "ipo", "simpo", "orpo", "kto",
]  # fmt: skip


@pytest.mark.parametrize("written", LOSSES, ids=str)
def test_the_gradient_is_that_of_finite_differences(written: Any) -> None:
    loss = loss_function(loss_of(written))
    rows = [CHOSEN, REJECTED, (-3.0, -3.5, 7), (-20.0, -18.0, 9)]
    given = answers(*rows, z=0.3)
    loss(given).losses_P.sum().backward()
    assert given.logprobs_A.grad is not None
    for at in range(len(rows)):
        moved = []
        for step in (1e-5, -1e-5):
            changed = [(r[0] + step * (at == n), *r[1:]) for n, r in enumerate(rows)]
            moved.append(float(loss(answers(*changed, z=0.3)).losses_P.sum().detach()))
        slope = (moved[0] - moved[1]) / 2e-5
        assert float(given.logprobs_A.grad[at]) == pytest.approx(slope, abs=1e-8)


def test_what_each_loss_needs() -> None:
    needs = {str(each): (is_paired(loss_of(each)), has_reference(loss_of(each))) for each in LOSSES}
    assert [name for name, (paired, _) in needs.items() if not paired] == ["kto"]
    without = [name for name, (_, reference) in needs.items() if not reference]
    assert without == ["{'reference_free': True}", "simpo", "orpo"]
    with pytest.raises(ValidationError, match="dpo', 'ipo', 'kto', 'orpo', 'simpo'"):
        loss_of("ppo")
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        loss_of({"kind": "orpo", "beta": 1})
