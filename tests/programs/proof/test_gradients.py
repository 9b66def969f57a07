"""Each loss has the gradient that finite differences of the same loss, written anew, have."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
import torch
from torch import Tensor

from engines.algorithms.aggregation import shares
from engines.algorithms.losses import (
    ClipLoss,
    Estimator,
    kl_estimate,
    policy_loss,
    supervised_loss,
    unbiased_kl,
    value_loss,
)
from tests.programs.proof import reference
from tests.programs.proof.cases import doubles, flat, loss_cases, micro

pytestmark = pytest.mark.unit

STEP = 1e-6


def slopes(function: Callable[[list[float]], float], at: Sequence[float]) -> list[float]:
    """Central differences in each number."""
    found: list[float] = []
    for place in range(len(at)):
        ends: list[float] = []
        for move in (STEP, -STEP):
            moved = list(at)
            moved[place] += move
            ends.append(function(moved))
        found.append((ends[0] - ends[1]) / (2 * STEP))
    return found


def gradient(function: Callable[[Tensor], Tensor], at: Sequence[float]) -> list[float]:
    leaf = doubles(at).requires_grad_()
    (found,) = torch.autograd.grad(function(leaf), leaf)
    return found.tolist()


def near(wanted: list[float]) -> object:
    return pytest.approx(wanted, rel=1e-5, abs=1e-7)


@pytest.mark.proof("{row}", "gradient")
@pytest.mark.parametrize(("row", "spec", "anew"), loss_cases())
def test_policy_losses(row, spec, anew) -> None:
    """Of a sum with unequal factors, so that no two tokens can hide each other's error."""
    made = micro(random.Random(8))
    tokens = made.inputs()
    assert tokens.logprobs_R.requires_grad
    factors = torch.linspace(0.5, 2, len(tokens.logprobs_R), dtype=torch.float64)
    loss = (policy_loss(spec)(tokens).loss_R * factors).sum()
    (found,) = torch.autograd.grad(loss, tokens.logprobs_R)
    begin, remaining = 0, factors.tolist()
    for new, old, a in zip(made.new, made.old, made.advantages, strict=True):
        mine = remaining[begin : begin + len(new)]

        def whole(values: list[float], new=new, old=old, a=a, mine=mine) -> float:
            made = anew(values, old, a, held=new)
            return sum(f * x for f, x in zip(mine, made, strict=True))

        assert found[begin : begin + len(new)].tolist() == near(slopes(whole, new))
        begin += len(new)
    assert begin == len(found)


@pytest.mark.proof("kl {name}", "gradient")
@pytest.mark.proof("kl unbiased", "gradient")
@pytest.mark.parametrize("name", get_args(Estimator))
def test_kl(name) -> None:
    new, old, base = [-0.5, -1.5, -3.0], [-0.6, -1.0, -3.0], [-0.5, -2.0, -1.0]

    def plain(values: list[float]) -> float:
        return sum(reference.kl(n, b, name) for n, b in zip(values, base, strict=True))

    def weighed(values: list[float]) -> float:
        rows = zip(values, old, base, strict=True)
        return sum(reference.unbiased_kl(n, o, b, name) for n, o, b in rows)

    got = gradient(lambda x: kl_estimate(x, doubles(base), name).sum(), new)
    assert got == near(slopes(plain, new))
    got = gradient(lambda x: unbiased_kl(x, doubles(old), doubles(base), name).sum(), new)
    assert got == near(slopes(weighed, new))


@pytest.mark.proof("value loss", "gradient")
@pytest.mark.parametrize("bound", [0.2, None])
def test_value_loss(bound: float | None) -> None:
    new, old, target = [0.5, 0.1, -0.5, 2.0, 0.3], [0.0] * 5, [1.0, 1.0, 1.0, 1.0, 0.25]

    def whole(values: list[float]) -> float:
        rows = zip(values, old, target, strict=True)
        return sum(reference.value(n, o, t, bound) for n, o, t in rows)

    got = gradient(lambda x: value_loss(x, doubles(old), doubles(target), clip=bound)[0].sum(), new)
    assert got == near(slopes(whole, new))


@pytest.mark.proof("supervised loss", "gradient")
def test_supervised_loss() -> None:
    assert gradient(lambda x: supervised_loss(x).sum(), [-0.5, -2.0]) == [-1, -1]


@pytest.mark.proof("aggregation {mean}", "gradient")
@pytest.mark.parametrize("mean", ["token_mean", "sequence_mean", "rollout_mean", "constant"])
def test_the_mean_of_a_clipped_loss(mean) -> None:
    made = micro(random.Random(4), num=5)
    rollouts, lengths = [0, 1, 1, 2, 0], [8.0, 6.0, 6.0, 9.0, 8.0]
    tokens = made.inputs()
    spec = ClipLoss(kind="clip")
    shared = shares(mean, tokens.num_trained_B, torch.tensor(rollouts), doubles(lengths))
    losses = policy_loss(spec)(tokens).loss_R
    whole = (losses * shared.weight_N[tokens.segment_R]).sum() / shared.units_N.sum()
    (found,) = torch.autograd.grad(whole, tokens.logprobs_R)

    def anew(values: list[float]) -> float:
        rows, begin = [], 0
        for old, a in zip(made.old, made.advantages, strict=True):
            new = values[begin : begin + len(old)]
            rows.append(reference.clip(new, old, a, low=0.2, high=0.28, dual=None, held=new))
            begin += len(old)
        return reference.mean(mean, rows, rollouts, lengths)

    assert found.tolist() == near(slopes(anew, flat(made.new).tolist()))
