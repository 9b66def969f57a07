"""Losses of tokens, and their gradients, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engines.algorithms.inputs import LossInputs, PolicyLoss
from engines.algorithms.losses import (
    CispoLoss,
    ClipLoss,
    DisLoss,
    GspoLoss,
    Loss,
    ReinforceLoss,
    clip_loss,
    kl_estimate,
    policy_loss,
    supervised_loss,
    unbiased_kl,
    value_loss,
)

pytestmark = pytest.mark.unit


def tokens_of(
    ratios: list[float], advantages: list[float], lengths: list[int] | None = None
) -> LossInputs:
    """Tokens whose old logprob is -1 each."""
    lengths = lengths or [1] * len(ratios)
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    new = old + torch.tensor(ratios, dtype=torch.float64).log()
    return LossInputs(
        logprobs_R=new.requires_grad_(),
        old_logprobs_R=old,
        advantages_R=torch.tensor(advantages, dtype=torch.float64),
        segment_R=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        num_trained_B=torch.tensor(lengths),
    )


def gradient_of(made: PolicyLoss, tokens: LossInputs) -> list[float]:
    made.loss_R.sum().backward()
    assert tokens.logprobs_R.grad is not None
    return tokens.logprobs_R.grad.tolist()


def run(spec: Loss, tokens: LossInputs) -> tuple[list[float], list[bool], list[float]]:
    made = policy_loss(spec)(tokens)
    return made.loss_R.tolist(), made.is_clipped_R.tolist(), gradient_of(made, tokens)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped", "gradient"),
    [
        (1.0, 1.0, -1.0, False, -1.0),
        # Above 1.28 with a good action: held at -1.28 x 1, no more push.
        (1.5, 1.0, -1.28, True, 0.0),
        # Above 1.28 with a bad action: min(-1.5, -1.28) = -1.5, pushed back at full strength.
        (1.5, -1.0, 1.5, False, 1.5),
        # Below 0.8 with a bad action: min(-0.5, -0.8) = -0.8, no more push.
        (0.5, -1.0, 0.8, True, 0.0),
        # Below 0.8 with a good action: min(0.5, 0.8) = 0.5, pushed up.
        (0.5, 1.0, -0.5, False, -0.5),
        (1.2, 2.0, -2.4, False, -2.4),
    ],
)
@pytest.mark.proof("loss clip", "hand", numbers=2)
def test_the_clipped_loss_by_hand(
    ratio: float, advantage: float, loss: float, is_clipped: bool, gradient: float
) -> None:
    """The gradient is d loss / d logprob = -ratio x advantage where it is not clipped."""
    got = run(ClipLoss(kind="clip"), tokens_of([ratio], [advantage]))
    assert got[0] == pytest.approx([loss])
    assert got[1] == [is_clipped]
    assert got[2] == pytest.approx([gradient])


@pytest.mark.proof("loss clip", "hand", numbers=6)
def test_the_dual_bound_by_hand() -> None:
    # c = 3. Bad actions of ratio 5 and 2: 5 is held at 3 without gradient, 2 is below the bound.
    # A good action of ratio 5 is held by the ordinary clip at 1.28.
    spec = ClipLoss(kind="clip", dual_clip=3.0)
    got = run(spec, tokens_of([5, 2, 5], [-1, -1, 1]))
    assert got[0] == pytest.approx([3, 2, -1.28])
    assert got[1] == [True, False, True]
    assert got[2] == pytest.approx([0, 2, 0])


@pytest.mark.proof("loss gspo", "hand", numbers=6)
def test_gspo_by_hand() -> None:
    # Sequence 0, ratios 2 and 1/2: mean log ratio 0, ratio 1, A = 1: loss -1 at both, and each
    # token's gradient is -1 x 1/2 from each of the two losses: -1.
    # Sequence 1, one token of ratio 1.5, A = 2, clipped at 1.1: -2.2, no gradient.
    spec = GspoLoss(kind="gspo", clip_low=0.1, clip_high=0.1)
    got = run(spec, tokens_of([2, 0.5, 1.5], [1, 1, 2], [2, 1]))
    assert got[0] == pytest.approx([-1, -1, -2.2])
    assert got[1] == [False, False, True]
    assert got[2] == pytest.approx([-1, -1, 0])


@pytest.mark.proof("loss gspo", "limit")
def test_gspo_of_one_token_sequences_is_the_clipped_loss() -> None:
    ratios, signs = [0.5, 0.9, 1.0, 1.1, 1.5], [1.0, -1.0, 2.0, -2.0, 1.0]
    spec = GspoLoss(kind="gspo", clip_low=0.2, clip_high=0.2)
    plain = ClipLoss(kind="clip", clip_low=0.2, clip_high=0.2)
    got, wanted = run(spec, tokens_of(ratios, signs)), run(plain, tokens_of(ratios, signs))
    assert got[0] == pytest.approx(wanted[0])
    assert got[2] == pytest.approx(wanted[2])


@pytest.mark.proof("loss cispo", "hand", numbers=4)
def test_cispo_by_hand() -> None:
    # Old logprob -1. Ratio 8 is weighed 5: logprob -1 + ln 8 = 1.07944, loss -5 x 1.07944.
    # Ratio 0.5 is weighed 0.5 (no lower bound): logprob -1.69315, A = -2: loss -1.69315.
    got = run(CispoLoss(kind="cispo"), tokens_of([8, 0.5], [1, -2]))
    assert got[0] == pytest.approx([-5.39721, -1.69315], abs=1e-5)
    assert got[1] == [True, False]
    assert got[2] == pytest.approx([-5, 1])


@pytest.mark.proof("loss dis", "hand", numbers=8)
def test_dis_by_hand() -> None:
    # Bounds 0.7 and 6. Ratios 1.2 and 0.5 and 7: the last two are left out whatever A's sign.
    spec = DisLoss(kind="dis")
    got = run(spec, tokens_of([1.2, 0.5, 7, 7], [1, -1, 1, -1]))
    assert got[0] == pytest.approx([1.2 * (1 - math.log(1.2)), 0, 0, 0])
    assert got[1] == [False, True, True, True]
    # -ratio x A, with no share of the logprob that a gradient through the ratio would add.
    assert got[2] == pytest.approx([-1.2, 0, 0, 0])


@pytest.mark.proof("loss reinforce", "hand", numbers=4)
def test_reinforce_by_hand() -> None:
    # Logprobs -1 and -1 + ln 2.
    got = run(ReinforceLoss(kind="reinforce"), tokens_of([1, 2], [2, -1]))
    assert got[0] == pytest.approx([2, -1 + math.log(2)])
    assert got[2] == pytest.approx([-2, 1])


@pytest.mark.parametrize(
    "spec",
    [
        ClipLoss(kind="clip"),
        ClipLoss(kind="clip", dual_clip=3.0),
        GspoLoss(kind="gspo"),
        CispoLoss(kind="cispo"),
        DisLoss(kind="dis"),
    ],
    ids=lambda spec: spec.kind,
)
@pytest.mark.proof("loss {spec.kind}", "limit")
def test_at_ratio_one_every_loss_is_reinforce(spec: Loss) -> None:
    # One sequence has one advantage, as an estimator over rollouts gives it.
    made = run(spec, tokens_of([1] * 4, [0.5, -2, -2, -2], [1, 3]))
    assert made[1] == [False] * 4
    assert made[2] == pytest.approx([-0.5, 2, 2, 2])


@pytest.mark.proof("loss clip", "limit")
def test_an_infinite_clip_is_none() -> None:
    ratios, signs = [0.01, 0.5, 3.0, 50.0], [1.0, -1.0, 1.0, -1.0]
    tokens = tokens_of(ratios, signs)
    made = clip_loss(tokens, clip_low=1.0, clip_high=1e9, dual_clip=None)
    wanted = [-r * a for r, a in zip(ratios, signs, strict=True)]
    assert made.loss_R.tolist() == pytest.approx(wanted)
    assert made.is_clipped_R.tolist() == [False] * 4


@pytest.mark.proof("supervised loss", "hand", numbers=3)
def test_supervised_loss_is_the_negative_logprob() -> None:
    # Of probabilities e^-0.5, e^-2 and 1.
    assert supervised_loss(torch.tensor([-0.5, -2.0, 0.0])).tolist() == [0.5, 2.0, 0.0]


@pytest.mark.proof("value loss", "hand", numbers=6)
def test_the_value_loss_by_hand() -> None:
    # V_old 0, target 1, clip 0.2. V = 0.5: max(0.25, 0.64) / 2 = 0.32, held, no gradient.
    # V = 0.1: 0.81 / 2, gradient -0.9. V = -0.5: moved away, max(2.25, 1.44) / 2, gradient -1.5.
    values = torch.tensor([0.5, 0.1, -0.5], requires_grad=True)
    loss, is_clipped = value_loss(values, torch.zeros(3), torch.ones(3), clip=0.2)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.32, 0.405, 1.125])
    assert is_clipped.tolist() == [True, False, False]
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0, -0.9, -1.5])


def test_a_value_within_the_bound_is_never_held_by_rounding() -> None:
    # old + (v - old) is v only up to rounding, which must not count.
    old, targets = torch.linspace(0.001, 0.19, 200), torch.linspace(1.0, 0.0, 200)
    values = old.flip(0) / 3
    assert (old + (values - old) != values).any()
    loss, is_held = value_loss(values, old, targets, clip=0.2)
    assert not is_held.any()
    assert torch.allclose(loss, (values - targets).square() / 2)


def test_the_value_loss_without_a_bound() -> None:
    loss, is_clipped = value_loss(torch.tensor([3.0]), torch.zeros(1), torch.ones(1), clip=None)
    assert loss.tolist() == [2.0]
    assert is_clipped.tolist() == [False]
    assert is_clipped.dtype == torch.bool


LN2 = math.log(2)


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        # d = ln 2, -ln 2, 0: k3 = 1/2 - 1 + ln 2 and 2 - 1 - ln 2.
        ("k1", [LN2, -LN2, 0]),
        ("k2", [LN2**2 / 2, LN2**2 / 2, 0]),
        ("k3", [0.19315, 0.30685, 0]),
    ],
)
@pytest.mark.proof("kl {estimator}", "hand", numbers=3)
def test_kl_estimates_by_hand(estimator, wanted: list[float]) -> None:
    logprobs = torch.tensor([-1 + LN2, -1 - LN2, -1.0])
    reference = torch.full((3,), -1.0)
    got = kl_estimate(logprobs, reference, estimator)
    assert got.tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.proof("kl unbiased", "hand", numbers=3)
def test_the_unbiased_kl_by_hand() -> None:
    # Ratios to the old policy 2, 1/2 and 1; d = ln 2, -ln 2 and ln 2, so that k3 is 1/2 - 1 + ln 2
    # = 0.19315 or 2 - 1 - ln 2 = 0.30685: 2 x 0.19315, 0.30685 / 2, 0.19315.
    new = torch.tensor([-1.0 + LN2, -1.0 - LN2, -1.0])
    old, reference = torch.full((3,), -1.0), torch.tensor([-1.0, -1.0, -1.0 - LN2])
    got = unbiased_kl(new, old, reference, "k3")
    assert got.tolist() == pytest.approx([0.38629, 0.15343, 0.19315], abs=1e-5)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.proof("kl unbiased", "limit")
def test_the_unbiased_gradient_is_the_kls_own_under_any_sampler(estimator) -> None:
    """Expectation over a small vocabulary, by sum, of samples from another policy than the
    present one: k1 and k3 then have the gradient of the KL itself."""
    torch.manual_seed(1)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference, old = torch.randn(2, 5, dtype=torch.float64).log_softmax(-1)

    def gradient(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    new = logits.log_softmax(-1)
    exact = gradient((new.exp() * (new - reference)).sum())
    unbiased = gradient((old.exp() * unbiased_kl(new, old, reference, estimator)).sum())
    plain = gradient((old.exp() * kl_estimate(new, reference, estimator)).sum())
    assert not torch.allclose(plain, exact, atol=1e-3)
    # k2's weighted gradient is that of the mean square: another divergence.
    assert torch.allclose(unbiased, exact, atol=1e-12) == (estimator != "k2")


def test_k2_has_the_kls_gradient_for_samples_of_the_policy_itself() -> None:
    torch.manual_seed(2)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(5, dtype=torch.float64).log_softmax(-1)
    new = logits.log_softmax(-1)
    probs = new.exp().detach()
    (exact,) = torch.autograd.grad((new.exp() * (new - reference)).sum(), logits, retain_graph=True)
    as_loss = [
        torch.autograd.grad(
            (probs * kl_estimate(new, reference, k)).sum(), logits, retain_graph=True
        )[0]
        for k in ("k1", "k2")
    ]
    assert torch.allclose(as_loss[0], torch.zeros(5, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(as_loss[1], exact, atol=1e-12)
