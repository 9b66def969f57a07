"""Where an estimator must become another, simpler one."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from engines.algorithms.advantages import (
    DistillationAdvantage,
    GaeAdvantage,
    GroupAdvantage,
    ReinforcePlusPlusAdvantage,
    ReinforcePlusPlusBaselineAdvantage,
    RlooAdvantage,
    advantages,
    length_adaptive_lambda,
)
from engines.algorithms.aggregation import shares
from engines.algorithms.corrections import (
    Band,
    Correction,
    Veto,
    Weight,
    corrected,
    mismatch_metrics,
    off_policy_sequences,
)
from engines.algorithms.linear_logprobs import linear_logprobs
from engines.algorithms.losses import (
    CispoLoss,
    ClipLoss,
    DisLoss,
    GspoLoss,
    ReinforceLoss,
    kl_estimate,
    overlong_penalty,
    policy_loss,
    supervised_loss,
    unbiased_kl,
    value_loss,
)
from engines.algorithms.statistics import whitened
from tests.programs.proof.cases import doubles, flat, loss_cases, micro, replies, step_of

pytestmark = pytest.mark.unit


def near(wanted: object) -> object:
    return pytest.approx(wanted, rel=1e-9, abs=1e-9)


# Advantages


def lone(seed: int = 0) -> list:
    """Replies that are a rollout each and have no rewards of tokens."""
    made = replies(random.Random(seed))
    return [
        replace(r, rollout=i, token_rewards=[0.0] * len(r.logprobs)) for i, r in enumerate(made)
    ]


@pytest.mark.proof("advantage group", "limit")
def test_normalised_advantages_know_neither_shift_nor_scale_of_rewards() -> None:
    made, spec = lone(), GroupAdvantage(kind="group")
    moved = [replace(r, reward=3 * r.reward + 5) for r in made]
    got, wanted = (advantages(spec, step_of(m)) for m in (moved, made))
    assert got.tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.proof("advantage group", "limit")
@pytest.mark.proof("advantage rloo", "limit")
def test_leaving_one_out_is_the_plain_advantage_stretched() -> None:
    # (r - mean) n / (n - 1): the two agree as groups grow.
    made = lone()
    plain = advantages(GroupAdvantage(kind="group", std=False), step_of(made))
    got = advantages(RlooAdvantage(kind="rloo"), step_of(made))
    sizes = [sum(m.group == r.group for m in made) for r in made]
    stretch = flat(
        [[n / max(n - 1, 1)] * len(r.logprobs) for n, r in zip(sizes, made, strict=True)]
    )
    assert got.tolist() == near((plain * stretch).tolist())


@pytest.mark.proof("advantage reinforce++", "limit")
def test_without_discount_every_token_has_the_reward_of_its_reply() -> None:
    made = lone()
    spec = ReinforcePlusPlusAdvantage(kind="reinforce++", whiten=False)
    wanted = flat([[r.reward] * len(r.logprobs) for r in made])
    assert advantages(spec, step_of(made)).tolist() == near(wanted.tolist())


@pytest.mark.proof("advantage reinforce++-baseline", "limit")
def test_the_baseline_form_without_kl_and_whitening_is_the_plain_group_advantage() -> None:
    made = step_of(lone())
    spec = ReinforcePlusPlusBaselineAdvantage(kind="reinforce++-baseline", whiten=False)
    plain = GroupAdvantage(kind="group", std=False)
    assert advantages(spec, made).tolist() == near(advantages(plain, made).tolist())


@pytest.mark.proof("advantage gae", "limit")
def test_a_critic_that_says_nothing_leaves_the_discounted_return() -> None:
    made = [replace(r, values=[0.0] * len(r.values)) for r in lone()]
    spec = GaeAdvantage(kind="gae", gamma=0.9, lam=1.0, whiten=False)
    plain = ReinforcePlusPlusAdvantage(kind="reinforce++", gamma=0.9, whiten=False)
    assert advantages(spec, step_of(made)).tolist() == near(
        advantages(plain, step_of(made)).tolist()
    )


@pytest.mark.proof("advantage gae", "limit")
@pytest.mark.proof("lambda by length", "limit")
def test_a_large_alpha_is_lambda_one() -> None:
    made = step_of(lone())
    by_length = GaeAdvantage(kind="gae", alpha=1e12, lam=0.1, whiten=False)
    one = GaeAdvantage(kind="gae", lam=1.0, whiten=False)
    assert advantages(by_length, made).tolist() == near(advantages(one, made).tolist())
    assert length_adaptive_lambda(torch.tensor([10**9]), 1.5).tolist() == near([1.0])
    assert length_adaptive_lambda(torch.tensor([3]), 1e-9).tolist() == [0]


@pytest.mark.proof("advantage distillation", "limit")
def test_a_teacher_that_agrees_teaches_nothing_and_a_wide_bound_is_none() -> None:
    made = lone()
    agreed = [replace(r, teachers=[r.logprobs, r.logprobs], listens=[0.5, 0.5]) for r in made]
    free = DistillationAdvantage(kind="distillation", clip=None)
    wide = DistillationAdvantage(kind="distillation", clip=1e9)
    assert advantages(free, step_of(agreed)).abs().max() < 1e-12
    got, wanted = (advantages(spec, step_of(made)).tolist() for spec in (wide, free))
    assert got == wanted


@pytest.mark.proof("whitening", "limit")
def test_what_is_white_stays_and_a_second_time_changes_nothing() -> None:
    white = doubles([-1.0, 0.0, 1.0])
    assert whitened(white).tolist() == pytest.approx(white.tolist(), abs=1e-7)
    values = flat(micro(random.Random(0)).new)
    once = whitened(values)
    assert float(once.mean()) == near(0)
    assert float(once.var()) == pytest.approx(1, abs=1e-6)
    assert whitened(once).tolist() == pytest.approx(once.tolist(), abs=1e-7)


@pytest.mark.proof("overlong", "limit")
def test_a_margin_of_the_whole_budget_charges_every_token() -> None:
    got = overlong_penalty(torch.tensor([0, 10, 50]), torch.full((3,), 100), margin=1.0)
    assert got.tolist() == pytest.approx([0, -0.1, -0.5], abs=1e-15)


# Losses


@pytest.mark.proof("{row}", "limit")
@pytest.mark.parametrize(("row", "spec", "anew"), loss_cases())
def test_at_ratio_one_the_gradient_is_that_of_reinforce(row, spec, anew) -> None:
    made = micro(random.Random(2), spread=0.0)
    found = []
    for one in (spec, ReinforceLoss(kind="reinforce")):
        tokens = made.inputs()
        loss = policy_loss(one)(tokens)
        assert not loss.is_clipped_R.any()
        found.append(torch.autograd.grad(loss.loss_R.sum(), tokens.logprobs_R)[0].tolist())
    assert found[0] == near(found[1])


@pytest.mark.proof("loss clip", "limit")
@pytest.mark.proof("loss gspo", "limit")
@pytest.mark.proof("loss cispo", "limit")
@pytest.mark.proof("loss dis", "limit")
@pytest.mark.parametrize("kind", ["clip", "gspo", "cispo", "dis"])
def test_without_bounds_the_gradient_is_the_importance_weighted_one(kind: str) -> None:
    made = micro(random.Random(6))
    tokens = made.inputs()
    classes = {
        "clip": ClipLoss,
        "gspo": GspoLoss,
        "cispo": CispoLoss,
        "dis": DisLoss,
    }
    loss = policy_loss(classes[kind](kind=kind, clip_low=1.0, clip_high=1e12))(tokens)
    (found,) = torch.autograd.grad(loss.loss_R.sum(), tokens.logprobs_R)
    logs = [
        [n - o for n, o in zip(*row, strict=True)] for row in zip(made.new, made.old, strict=True)
    ]
    if kind == "gspo":
        logs = [[sum(row) / len(row)] * len(row) for row in logs]
    wanted = [
        -math.exp(x) * a for x, a in zip(flat(logs).tolist(), flat(made.advantages), strict=True)
    ]
    assert found.tolist() == near([float(x) for x in wanted])
    assert not loss.is_clipped_R.any()


@pytest.mark.proof("loss clip", "limit")
def test_a_far_dual_bound_is_none() -> None:
    made = micro(random.Random(6))
    plain, dual = (ClipLoss(kind="clip", dual_clip=c) for c in (None, 1e9))
    got, wanted = (policy_loss(spec)(made.inputs()) for spec in (dual, plain))
    assert got.loss_R.tolist() == wanted.loss_R.tolist()
    assert got.is_clipped_R.tolist() == wanted.is_clipped_R.tolist()


@pytest.mark.proof("supervised loss", "limit")
@pytest.mark.proof("loss reinforce", "limit")
def test_supervised_learning_is_reinforce_with_advantage_one() -> None:
    made = micro(random.Random(1))
    tokens = replace(made.inputs(), advantages_R=torch.ones(sum(map(len, made.new))).double())
    reinforced = policy_loss(ReinforceLoss(kind="reinforce"))(tokens).loss_R
    assert supervised_loss(tokens.logprobs_R).tolist() == near(reinforced.tolist())


@pytest.mark.proof("kl {name}", "limit")
@pytest.mark.proof("kl unbiased", "limit")
@pytest.mark.parametrize(("name", "second"), [("k1", None), ("k2", 1.0), ("k3", 1.0)])
def test_near_the_reference_a_kl_is_half_the_square(name, second: float | None) -> None:
    base, small = doubles([-1.0, -2.0]), 1e-4
    at = kl_estimate(base + small, base, name)
    if second is None:
        assert at.tolist() == pytest.approx([small] * 2)
    else:
        assert at.tolist() == pytest.approx([second * small**2 / 2] * 2, rel=1e-3)
    assert kl_estimate(base, base, name).tolist() == [0, 0]
    # At ratio one the weighted form has the value of the plain one.
    assert unbiased_kl(base + 1, base + 1, base, name).tolist() == near(
        kl_estimate(base + 1, base, name).tolist()
    )


@pytest.mark.proof("value loss", "limit")
def test_a_far_bound_of_the_value_is_none() -> None:
    made = micro(random.Random(0))
    args = flat(made.new), flat(made.old), flat(made.old).roll(1)
    far, none = (value_loss(*args, clip=clip) for clip in (1e9, None))
    assert far[0].tolist() == near(none[0].tolist())
    # Not moved yet: no bound decides.
    assert not value_loss(args[1], args[1], args[2], clip=0.2)[1].any()


# Corrections


@pytest.mark.proof("weight {level}", "limit")
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("normalize", [False, True])
def test_equal_engines_need_no_weight(level, normalize: bool) -> None:
    tokens = micro(random.Random(0)).inputs()
    spec = Correction(weight=Weight(level=level, normalize=normalize))
    old = tokens.old_logprobs_R
    made = corrected(spec, old, old, tokens.segment_R, len(tokens.num_trained_B))
    assert made.weights_R.tolist() == [1.0] * len(old)
    assert made.metrics["weight_truncated_share"] == 0


@pytest.mark.proof("weight {level}", "limit")
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_in_sequences_of_one_token_all_levels_are_one(level) -> None:
    logs = doubles([0.3, -0.7, 1.1])
    spec = Correction(weight=Weight(level=level, high=None))
    made = corrected(spec, logs, torch.zeros(3).double(), torch.arange(3), 3)
    assert made.weights_R.tolist() == near(logs.exp().tolist())


@pytest.mark.proof("reject ratio", "limit")
@pytest.mark.proof("reject veto", "limit")
@pytest.mark.proof("reject opsm", "limit")
def test_wide_bounds_reject_nothing() -> None:
    tokens = micro(random.Random(0)).inputs()
    spec = Correction(
        reject=[
            Band(kind="ratio", low=0.0, high=1e9),
            Veto(kind="veto", floor=1e-12),
        ]
    )
    new, old = tokens.logprobs_R.detach(), tokens.old_logprobs_R
    made = corrected(spec, new, old, tokens.segment_R, len(tokens.num_trained_B))
    assert made.weights_R.tolist() == [1.0] * len(new)
    assert made.metrics == {"rejected_share": 0}
    assert not off_policy_sequences(tokens, old, delta=1e9).any()


@pytest.mark.proof("mismatch metrics", "limit")
def test_equal_engines_have_no_mismatch() -> None:
    values = flat(micro(random.Random(0)).new)
    got = mismatch_metrics(values, values, torch.zeros(len(values)))
    assert got.pop("mismatch_ess") == near(1)
    ratios = {name: got.pop(f"mismatch_ratio_{name}") for name in ("p01", "p50", "p99")}
    assert set(ratios.values()) == {1.0}
    assert set(got.values()) == {0}


# Aggregation, and the model's last layer


@pytest.mark.proof("aggregation {mean}", "limit")
@pytest.mark.parametrize("mean", ["token_mean", "sequence_mean", "rollout_mean", "constant"])
def test_in_samples_of_one_length_all_means_are_one(mean) -> None:
    sums = doubles([3.0, 6.0, -1.5])
    made = shares(mean, torch.full((3,), 4), torch.arange(3), torch.full((3,), 4))
    got = float((made.weight_N * sums).sum() / made.units_N.sum())
    assert got == near(7.5 / 12)


@pytest.mark.proof("logprobs and entropy", "limit")
def test_a_high_temperature_makes_all_tokens_alike() -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(3, 4, generator=draw), torch.randn(11, 4, generator=draw)
    logprobs, entropies = linear_logprobs(hidden, weight, torch.tensor([0, 5, 10]), temperature=1e6)
    assert logprobs.tolist() == pytest.approx([-math.log(11)] * 3, abs=1e-4)
    assert entropies.tolist() == pytest.approx([math.log(11)] * 3, abs=1e-5)
    sure = linear_logprobs(hidden, weight, (hidden @ weight.t()).argmax(-1), temperature=1e-3)
    assert [x.tolist() for x in sure] == [pytest.approx([0, 0, 0], abs=1e-4)] * 2
