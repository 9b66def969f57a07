"""The ledger of edge cases: empty, alone, equal, extreme, unheard."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from engines.algorithms import corrections, losses
from engines.algorithms.advantages import (
    DistillationAdvantage,
    GaeAdvantage,
    advantages,
    critic_targets,
    distillation_advantages,
    length_adaptive_lambda,
)
from engines.algorithms.aggregation import shares
from engines.algorithms.inputs import LossInputs
from engines.algorithms.losses import kl_estimate, overlong_penalty, unbiased_kl
from engines.algorithms.statistics import whitened
from tests.programs.proof.cases import advantage_cases, doubles, loss_cases, replies, step_of

pytestmark = pytest.mark.unit

EMPTY = torch.zeros(0, dtype=torch.float64)


@pytest.mark.proof("{row}", "edge")
@pytest.mark.parametrize(("row", "spec", "anew"), advantage_cases())
def test_an_advantage_is_a_finite_constant_and_leaves_its_inputs_alone(row, spec, anew) -> None:
    made = replies(random.Random(5))
    tokens, again = step_of(made), step_of(made)
    tokens.logprobs_R.requires_grad_()
    found = advantages(spec, tokens)
    assert found.dtype == torch.float64
    assert found.isfinite().all()
    assert not found.requires_grad
    for name in ("rewards_N", "token_rewards_R", "group_N", "sequence_R"):
        assert torch.equal(getattr(tokens, name), getattr(again, name))
    assert torch.equal(tokens.trajectories.values_S, again.trajectories.values_S)


@pytest.mark.proof("{row}", "edge")
@pytest.mark.parametrize(("row", "spec", "anew"), advantage_cases())
def test_one_reply_of_one_token_has_a_finite_advantage(row, spec, anew) -> None:
    one = replace(
        replies(random.Random(0))[0],
        reward=2.0,
        logprobs=[-3.0],
        token_rewards=[0.5],
        values=[0.25],
        trained=[True],
        teachers=[[-1.0], [math.nan]],
        listens=[1.0, 0.0],
    )
    got = advantages(spec, step_of([one])).tolist()
    raw = {
        "advantage group": 0.0,
        "advantage rloo": 0.0,
        "advantage reinforce++": 2.5,
        "advantage reinforce++-baseline": 0.5,
        "advantage gae": 2.25,
        "advantage distillation": 2.0 if getattr(spec, "clip", None) is None else 1.5,
    }
    # One value alone has no spread to be measured by.
    assert got == pytest.approx([0.0 if spec.whiten else raw[row]])


@pytest.mark.proof("advantage distillation", "edge")
def test_what_a_part_needs_and_does_not_get_is_said() -> None:
    step = replace(step_of(replies(random.Random(0))), teacher_logprobs_KR=None, trajectories=None)
    with pytest.raises(ValueError, match="distillation needs teachers' logprobs and weights"):
        advantages(DistillationAdvantage(kind="distillation"), step)
    step = replace(step_of(replies(random.Random(0))), teacher_weights_NK=None)
    with pytest.raises(ValueError, match="distillation needs teachers"):
        advantages(DistillationAdvantage(kind="distillation"), step)


@pytest.mark.proof("advantage distillation", "edge")
def test_distillation_carries_no_gradient_to_the_student() -> None:
    student = doubles([-1.0]).requires_grad_()
    args = (doubles([[-2.0]]), student, doubles([[1.0]]), torch.tensor([0]))
    found = distillation_advantages(*args, clip=None)
    assert found.tolist() == [-1]
    assert not found.requires_grad


@pytest.mark.proof("advantage gae", "edge")
def test_a_critic_learns_with_its_own_decay() -> None:
    # Values 0.5, 0.25, gamma 1, reward 1 at the end: d = -0.25, 0.75. With a decay of 0 the
    # targets are the next value and the reward: 0.25, 1; with 0.5: 0.5 + (-0.25 + 0.375) = 0.625.
    one = replace(
        replies(random.Random(0))[0],
        reward=1.0,
        logprobs=[-1.0, -1.0],
        token_rewards=[0.0, 0.0],
        values=[0.5, 0.25],
        trained=[True, True],
        teachers=[[0.0, 0.0], [0.0, 0.0]],
    )
    for decay, wanted in ((0.0, [0.25, 1.0]), (0.5, [0.625, 1.0])):
        spec = GaeAdvantage(kind="gae", lam=1.0, critic_lam=decay)
        assert critic_targets(spec, step_of([one])).tolist() == pytest.approx(wanted)


@pytest.mark.proof("{row}", "edge")
@pytest.mark.parametrize(("row", "spec", "anew"), loss_cases())
def test_a_micro_batch_without_tokens_has_an_empty_loss_with_a_gradient(row, spec, anew) -> None:
    for num in (0, 2):
        tokens = LossInputs(
            logprobs_R=EMPTY.clone().requires_grad_(),
            old_logprobs_R=EMPTY,
            advantages_R=EMPTY,
            segment_R=EMPTY.long(),
            num_trained_B=torch.zeros(num, dtype=torch.long),
        )
        made = losses.policy_loss(spec)(tokens)
        assert made.loss_R.shape == made.is_clipped_R.shape == (0,)
        made.loss_R.sum().backward()
        assert tokens.logprobs_R.grad is not None


@pytest.mark.proof("{row}", "edge")
@pytest.mark.parametrize(("row", "spec", "anew"), loss_cases())
def test_a_token_that_the_policy_gave_up_keeps_a_finite_loss(row, spec, anew) -> None:
    """Log ratio -90: the ratio is 0 in fp32."""
    tokens = LossInputs(
        logprobs_R=torch.tensor([-91.0, -91.0], requires_grad=True),
        old_logprobs_R=torch.tensor([-1.0, -1.0]),
        advantages_R=torch.tensor([1.0, -1.0]),
        segment_R=torch.tensor([0, 1]),
        num_trained_B=torch.tensor([1, 1]),
    )
    made = losses.policy_loss(spec)(tokens)
    made.loss_R.sum().backward()
    assert made.loss_R.isfinite().all()
    assert tokens.logprobs_R.grad is not None
    assert tokens.logprobs_R.grad.isfinite().all()


GAPS = [30.0, 80.0, 100.0, math.inf]
"""how far a log ratio leaves the bound of 20"""


@pytest.mark.proof("{row}", "edge")
@pytest.mark.parametrize(("row", "spec", "anew"), loss_cases())
@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_one_token_far_from_the_old_policy_cannot_end_a_run(
    row, spec, anew, gap: float, advantage: float
) -> None:
    """In the trainer's precision; a gap of infinity: the engine said that it had no probability."""
    for sign in (1, -1) if math.isfinite(gap) else (1,):
        leaf = torch.tensor([-0.1, -1.0], requires_grad=True)
        tokens = LossInputs(
            logprobs_R=leaf,
            old_logprobs_R=torch.tensor([-0.1 - sign * gap, -1.0]),
            advantages_R=torch.full((2,), advantage),
            segment_R=torch.tensor([0, 1]),
            num_trained_B=torch.tensor([1, 1]),
        )
        made = losses.policy_loss(spec)(tokens)
        made.loss_R.sum().backward()
        assert made.loss_R.abs().max() <= math.exp(20) * 1.001
        assert leaf.grad is not None
        assert leaf.grad.abs().max() <= math.exp(20)
        assert tokens.is_extreme_R.tolist() == [True, False]
        if advantage == 0:
            assert made.loss_R.abs().tolist() == leaf.grad.abs().tolist() == [0, 0]


@pytest.mark.proof("kl {name}", "edge")
@pytest.mark.proof("kl unbiased", "edge")
@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("gap", [30.0, 100.0, -30.0, -100.0])
def test_one_token_far_from_the_reference_has_a_finite_kl(name: str, gap: float) -> None:
    leaf = torch.tensor([-100.0], requires_grad=True)
    reference = leaf.detach() - gap
    found = kl_estimate(leaf, reference, name) + unbiased_kl(leaf, reference, reference, name)
    found.sum().backward()
    assert found.isfinite().all()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    # Far above the reference the penalty pulls down as ever; k1 and k2 know no bound.
    d = leaf.detach() - reference
    plain = {
        "k1": d,
        "k2": d * d / 2,
        "k3": d - 1 if gap > 0 else torch.tensor([math.exp(20) - 21]),
    }
    assert kl_estimate(leaf, reference, name).tolist() == pytest.approx(plain[name].tolist())


@pytest.mark.proof("mismatch metrics", "edge")
def test_an_engine_without_probability_has_finite_metrics() -> None:
    engine = torch.tensor([-1000.0, -1.0])
    found = corrections.mismatch_metrics(torch.tensor([-1.0, -1.0]), engine, torch.zeros(2))
    assert all(math.isfinite(value) for value in found.values())
    assert found["mismatch_max"] == 999
    assert found["mismatch_ratio_p99"] == pytest.approx(0.99 * math.exp(20) + 0.01)


@pytest.mark.proof("loss {kind}", "edge")
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("clip", losses.ClipLoss(kind="clip", clip_low=0.5, clip_high=1.0)),
        ("gspo", losses.GspoLoss(kind="gspo", clip_low=0.5, clip_high=1.0)),
        ("cispo", losses.CispoLoss(kind="cispo", clip_low=0.5, clip_high=1.0)),
    ],
)
def test_a_ratio_on_its_bound_is_not_clipped(kind: str, spec) -> None:
    ratios = doubles([0.5, 2.0])
    tokens = LossInputs(
        logprobs_R=ratios.log().requires_grad_(),
        old_logprobs_R=torch.zeros(2).double(),
        advantages_R=doubles([-1.0, 1.0]),
        segment_R=torch.tensor([0, 1]),
        num_trained_B=torch.tensor([1, 1]),
    )
    assert losses.policy_loss(spec)(tokens).is_clipped_R.tolist() == [False, False]


@pytest.mark.proof("loss clip", "edge")
def test_a_bad_action_on_the_dual_bound_is_not_held() -> None:
    tokens = LossInputs(
        logprobs_R=doubles([2.0]).log().requires_grad_(),
        old_logprobs_R=torch.zeros(1).double(),
        advantages_R=doubles([-1.0]),
        segment_R=torch.tensor([0]),
        num_trained_B=torch.tensor([1]),
    )
    made = losses.policy_loss(losses.ClipLoss(kind="clip", dual_clip=2.0))(tokens)
    assert made.loss_R.tolist() == [2]
    assert made.is_clipped_R.tolist() == [False]
    made.loss_R.sum().backward()
    assert tokens.logprobs_R.grad is not None
    assert tokens.logprobs_R.grad.tolist() == [2]


@pytest.mark.proof("loss dis", "edge")
def test_dis_leaves_out_a_ratio_on_its_bound() -> None:
    tokens = LossInputs(
        logprobs_R=doubles([0.5, 2.0]).log().requires_grad_(),
        old_logprobs_R=torch.zeros(2).double(),
        advantages_R=doubles([1.0, 1.0]),
        segment_R=torch.tensor([0, 1]),
        num_trained_B=torch.tensor([1, 1]),
    )
    made = losses.policy_loss(losses.DisLoss(kind="dis", clip_low=0.5, clip_high=1.0))(tokens)
    assert made.is_clipped_R.tolist() == [True, True]
    assert made.loss_R.tolist() == [0, 0]


@pytest.mark.proof("weight {level}", "edge")
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("high", [2.0, None])
def test_a_batch_without_tokens_has_no_weights(level, high: float | None) -> None:
    weight = corrections.Weight(level=level, high=high, normalize=True)
    spec = corrections.Correction(
        weight=weight, reject=[corrections.Band(kind="ratio", level=level)]
    )
    made = corrections.corrected(spec, EMPTY, EMPTY, EMPTY.long(), 0)
    assert made.weights_R.tolist() == []
    assert made.metrics == {
        "weight_mean": 0,
        "weight_max": 0,
        "weight_truncated_share": 0,
        "rejected_share": 1,
    }


@pytest.mark.proof("weight {level}", "edge")
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_an_impossible_token_has_a_bounded_weight(level) -> None:
    """Log ratios of +-50, a sample without tokens between the two and one after them."""
    spec = corrections.Correction(weight=corrections.Weight(level=level, high=None))
    made = corrections.corrected(
        spec, doubles([50.0, -50.0]), torch.zeros(2).double(), torch.tensor([0, 2]), 4
    )
    assert made.weights_R.tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    assert made.weights_R.dtype == torch.float64


@pytest.mark.proof("reject ratio", "edge")
@pytest.mark.proof("reject veto", "edge")
def test_a_ratio_on_its_bound_is_kept() -> None:
    logs, sequence = doubles([0.5, 2.0]).log(), torch.tensor([0, 1])
    zeros = torch.zeros(2).double()
    band = corrections.Band(kind="ratio", low=0.5, high=2.0)
    low, high = logs.exp().tolist()
    band = band.model_copy(update={"low": low, "high": high})
    for reject in (band, corrections.Veto(kind="veto", floor=low)):
        made = corrections.corrected(
            corrections.Correction(reject=[reject]), logs, zeros, sequence, 2
        )
        assert made.weights_R.tolist() == [1, 1]


@pytest.mark.proof("reject ratio", "edge")
@pytest.mark.proof("reject veto", "edge")
def test_all_may_be_rejected() -> None:
    logs = doubles([-9.0, 9.0, -9.0])
    for reject in (corrections.Band(kind="ratio"), corrections.Veto(kind="veto", floor=0.01)):
        spec = corrections.Correction(reject=[reject], weight=corrections.Weight())
        made = corrections.corrected(
            spec, logs, torch.zeros(3).double(), torch.tensor([0, 0, 1]), 2
        )
        assert made.weights_R.tolist() == [0, 0, 0]
        assert made.metrics["rejected_share"] == 1


@pytest.mark.proof("reject opsm", "edge")
def test_off_policy_masking_spares_advantage_zero_and_a_drift_on_its_bound() -> None:
    tokens = LossInputs(
        logprobs_R=doubles([-2.0, -2.0, -1.5]).requires_grad_(),
        old_logprobs_R=torch.zeros(3).double(),
        advantages_R=doubles([0.0, -1.0, -1.0]),
        segment_R=torch.tensor([0, 0, 1]),
        num_trained_B=torch.tensor([2, 1]),
    )
    # Drifts 1 and 0.5.
    engine = doubles([-1.0, -1.0, -1.0])
    found = corrections.off_policy_sequences(tokens, engine, delta=0.5)
    assert found.tolist() == [False, True, False]
    assert not found.requires_grad
    # It belongs to the loss: before the step it rejects nothing, and counts nothing.
    spec = corrections.Correction(reject=[corrections.Opsm(kind="opsm")])
    made = corrections.corrected(spec, engine, engine - 9, tokens.segment_R, 2)
    assert made.weights_R.tolist() == [1, 1, 1]
    assert made.metrics == {}


@pytest.mark.proof("aggregation {mean}", "edge")
@pytest.mark.parametrize("mean", ["token_mean", "sequence_mean", "rollout_mean", "constant"])
def test_one_sample_of_one_token_is_its_own_mean(mean) -> None:
    made = shares(mean, torch.tensor([1]), torch.tensor([7]), torch.tensor([1]))
    assert made.weight_N.tolist() == [1]
    assert made.units_N.tolist() == [1]
    assert made.weight_N.dtype == torch.float64
    assert made.units_N.dtype == torch.long


@pytest.mark.proof("kl {name}", "edge")
@pytest.mark.proof("kl unbiased", "edge")
@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl_of_nothing_and_of_far_away(name) -> None:
    assert kl_estimate(EMPTY, EMPTY, name).shape == (0,)
    assert unbiased_kl(EMPTY, EMPTY, EMPTY, name).shape == (0,)
    far = kl_estimate(torch.tensor([-0.1]), torch.tensor([-60.0]), name)
    assert far.isfinite().all()
    assert float(far) > 50
    # A policy that gave the token up: the weight takes the large estimate back.
    given_up = unbiased_kl(torch.tensor([-60.0]), torch.tensor([-0.1]), torch.tensor([-60.0]), name)
    assert float(given_up) == 0


@pytest.mark.proof("whitening", "edge")
def test_whitening_of_equal_values_and_of_one_is_zero() -> None:
    assert whitened(doubles([0.1, 0.1, 0.1])).abs().max() < 1e-8
    assert whitened(doubles([4.0])).tolist() == [0]
    # 1e-8 in the variance: of +-1e-4 (variance 2e-8) it takes 1/sqrt(3) of what is wanted.
    got = whitened(doubles([1e-4, -1e-4])).tolist()
    assert got == pytest.approx([1e-4 / math.sqrt(3e-8), -1e-4 / math.sqrt(3e-8)])


@pytest.mark.proof("overlong", "edge")
def test_the_penalty_at_its_ends() -> None:
    # Budget 10, margin 0.5: from 5 to 10 tokens.
    got = overlong_penalty(torch.tensor([0, 5, 6, 10, 11]), torch.full((5,), 10), margin=0.5)
    assert got.tolist() == pytest.approx([0, 0, -0.2, -1, -1])
    assert got.dtype == torch.float64


@pytest.mark.proof("lambda by length", "edge")
def test_a_trajectory_without_tokens_has_the_lambda_of_one() -> None:
    got = length_adaptive_lambda(torch.tensor([0, 1]), 1.5)
    assert got.tolist() == pytest.approx([1 / 3, 1 / 3])
    assert got.dtype == torch.float64


@pytest.mark.proof("value loss", "edge")
def test_a_value_on_its_bound_or_at_its_target_is_not_held() -> None:
    # Moved by exactly 0.25; moved past the target.
    loss, is_held = losses.value_loss(
        doubles([0.25, 1.0]), doubles([0, 1.0]), doubles([1.0, 1.0]), clip=0.25
    )
    assert loss.tolist() == [0.75**2 / 2, 0]
    assert is_held.tolist() == [False, False]
    assert losses.value_loss(EMPTY, EMPTY, EMPTY, clip=0.2)[0].shape == (0,)


@pytest.mark.proof("supervised loss", "edge")
def test_a_certain_token_costs_nothing() -> None:
    assert losses.supervised_loss(doubles([0.0])).tolist() == [0]
    assert losses.supervised_loss(EMPTY).shape == (0,)
