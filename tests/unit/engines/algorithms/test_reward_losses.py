"""Losses of reward models: numbers worked out by hand, and an independent float64 reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from engines.algorithms.parts import our_part
from engines.algorithms.reward_losses import Judged, RewardLoss, RewardLosses, compares

pytestmark = pytest.mark.unit

LISTS = [[2.0, 1.0, 0.0, -0.5], [0.3, -1.2], [1.0, 0.1, 0.7]]
WORTH = [[4.0, 3.0, 2.0, 1.0], [1.0, 2.0], [1.0, 1.0, 0.0]]
"""the last one's two best are equally good"""


def loss_of(written: Any) -> RewardLoss:
    return TypeAdapter[RewardLoss](RewardLoss).validate_python(written)


def judged(
    rewards: Sequence[Sequence[float]],
    worth: Sequence[Sequence[float]],
    margins: Sequence[float] = (),
) -> Judged:
    flat, told = (
        torch.tensor([x for each in lists for x in each], dtype=torch.float64)
        for lists in (rewards, worth)
    )
    sizes = torch.tensor([len(each) for each in rewards])
    numbers = torch.repeat_interleave(torch.arange(len(rewards)), sizes)
    given = torch.tensor(margins or [0.0] * len(rewards), dtype=torch.float64)
    return Judged(flat.requires_grad_(), told, numbers, given)


def found(written: Any, given: Judged) -> RewardLosses:
    loss = loss_of(written)
    return partial(our_part(loss.code), **loss.model_dump(exclude={"kind"}))(given)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_a_pair_s_loss_has_margin_and_centre() -> None:
    given = judged([[2.0, 1.0], [-1.0, 1.0]], [[1, 0], [1, 0]], [0.5, 0.5])
    first = -math.log(sigmoid(1 - 0.5)) + 0.01 * 3**2
    second = -math.log(sigmoid(-2 - 0.5))
    compared = found("bradley-terry", given)
    assert compared.losses_P.tolist() == pytest.approx([first, second], abs=1e-12)
    assert compared.right_P.tolist() == [1, 0]
    plain = found({"margins": False, "centring": 0}, given)
    assert plain.losses_P[0].tolist() == pytest.approx(-math.log(sigmoid(1)), abs=1e-12)


def test_a_list_of_three_by_hand() -> None:
    of_three = found({"kind": "plackett-luce", "centring": 0}, judged([[2, 1, 0]], [[3, 2, 1]]))
    drawn_first = math.exp(2) / (math.exp(2) + math.exp(1) + 1)
    then = math.exp(1) / (math.exp(1) + 1)
    assert of_three.losses_P.tolist() == pytest.approx([-math.log(drawn_first * then)], abs=1e-12)
    centred = found({"kind": "plackett-luce", "centring": 0.1}, judged([[2, 1, 0]], [[3, 2, 1]]))
    assert (centred.losses_P - of_three.losses_P).tolist()[0] == pytest.approx(
        0.1 * 2**2, abs=1e-12
    )


def test_two_answers_are_bradley_and_terry_s() -> None:
    rewards, worth = [[0.3, -1.2], [-2.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]
    pairs, lists = judged(rewards, worth), judged(rewards, worth)
    of_pairs, of_lists = found("bradley-terry", pairs), found("plackett-luce", lists)
    assert of_lists.losses_P.tolist() == pytest.approx(of_pairs.losses_P.tolist(), abs=1e-12)
    assert of_lists.right_P.tolist() == of_pairs.right_P.tolist()
    of_pairs.losses_P.sum().backward()
    of_lists.losses_P.sum().backward()
    assert lists.rewards_A.grad is not None
    assert pairs.rewards_A.grad is not None
    torch.testing.assert_close(lists.rewards_A.grad, pairs.rewards_A.grad, rtol=0, atol=1e-12)


def by_loops(rewards: Sequence[float], worth: Sequence[float]) -> tuple[float, list[float]]:
    """The loss of a list, and its gradient, one answer after another."""
    loss, gradient = 0.0, [0.0] * len(rewards)
    for at, reward in enumerate(rewards):
        among = [at, *(n for n in range(len(rewards)) if worth[n] < worth[at])]
        total = sum(math.exp(rewards[n]) for n in among)
        loss += math.log(total) - reward
        gradient[at] -= 1
        for n in among:
            gradient[n] += math.exp(rewards[n]) / total
    return loss, gradient


def test_lists_of_several_lengths_and_their_gradient_are_an_independent_reference_s() -> None:
    given = judged(LISTS, WORTH)
    compared = found({"kind": "plackett-luce", "centring": 0}, given)
    expected = [by_loops(*each) for each in zip(LISTS, WORTH, strict=True)]
    assert compared.losses_P.tolist() == pytest.approx([loss for loss, _ in expected], abs=1e-12)
    assert compared.right_P.tolist() == pytest.approx([1, 0, 0.5])
    compared.losses_P.sum().backward()
    assert given.rewards_A.grad is not None
    slopes = [slope for _, gradient in expected for slope in gradient]
    assert given.rewards_A.grad.tolist() == pytest.approx(slopes, abs=1e-12)


@pytest.mark.parametrize("order", [[3, 1, 0, 2], [1, 0, 3, 2]])
def test_the_order_in_which_a_list_is_written_does_not_matter(order: list[int]) -> None:
    rewards, worth = LISTS[0], [2.0, 1.0, 1.0, 0.0]
    shuffled = judged([[rewards[n] for n in order]], [[worth[n] for n in order]])
    whole = [found("plackett-luce", each) for each in (judged([rewards], [worth]), shuffled)]
    assert whole[0].losses_P.tolist() == pytest.approx(whole[1].losses_P.tolist(), abs=1e-12)
    assert whole[0].right_P.tolist() == whole[1].right_P.tolist()


def test_single_answers_by_hand() -> None:
    given = judged([[2.0], [2.0], [-1.0]], [[1.0], [0.0], [0.25]])
    compared = found("binary", given)
    part = -0.25 * math.log(sigmoid(-1)) - 0.75 * math.log(sigmoid(1))
    expected = [-math.log(sigmoid(2)), -math.log(sigmoid(-2)), part]
    assert compared.losses_P.tolist() == pytest.approx(expected, abs=1e-12)
    assert compared.right_P.tolist() == [1, 0, 1]
    compared.losses_P.sum().backward()
    slopes = [sigmoid(2) - 1, sigmoid(2), sigmoid(-1) - 0.25]
    assert given.rewards_A.grad is not None
    assert given.rewards_A.grad.tolist() == pytest.approx(slopes, abs=1e-12)
    scored = judged([[2.0], [-1.0]], [[3.5], [-1.0]])
    of_scores = found("regression", scored)
    assert of_scores.losses_P.tolist() == [2.25, 0]
    of_scores.losses_P.sum().backward()
    assert scored.rewards_A.grad is not None
    assert scored.rewards_A.grad.tolist() == [-3, 0]


def test_what_each_loss_compares() -> None:
    kinds = ("bradley-terry", "plackett-luce", "binary", "regression")
    assert [compares(loss_of(k)) for k in kinds] == ["pairs", "lists", "goodness", "scores"]
    assert compares(loss_of({"centring": 0})) == "pairs"
    with pytest.raises(ValidationError, match="'plackett-luce', 'binary', 'regression'"):
        loss_of("dpo")
