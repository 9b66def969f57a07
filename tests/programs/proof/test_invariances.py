"""What must not change a result: order, names, packing, what else stands in the batch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.algorithms.advantages import (
    GroupAdvantage,
    RlooAdvantage,
    advantages,
    length_adaptive_lambda,
)
from engines.algorithms.aggregation import shares
from engines.algorithms.corrections import (
    Band,
    Correction,
    Level,
    Veto,
    Weight,
    corrected,
    mismatch_metrics,
    off_policy_sequences,
)
from engines.algorithms.losses import (
    Estimator,
    kl_estimate,
    overlong_penalty,
    policy_loss,
    supervised_loss,
    unbiased_kl,
    value_loss,
)
from engines.algorithms.statistics import whitened
from tests.programs.proof.cases import (
    Micro,
    advantage_cases,
    flat,
    loss_cases,
    micro,
    replies,
    step_of,
)

pytestmark = pytest.mark.unit

FEW = settings(max_examples=8, deadline=None)
SEED = st.integers(0, 9999)


def near(wanted: object) -> object:
    return pytest.approx(wanted, rel=1e-9, abs=1e-9)


def by_reply(values: torch.Tensor, made: list) -> list[list[float]]:
    return [part.tolist() for part in values.split([len(r.logprobs) for r in made])]


@pytest.mark.proof("{row}", "invariance")
@pytest.mark.proof("whitening", "invariance")
@pytest.mark.parametrize(("row", "spec", "anew"), advantage_cases())
@FEW
@given(seed=SEED)
def test_advantages_know_neither_order_nor_names(row, spec, anew, seed: int) -> None:
    draw = random.Random(seed)
    made = replies(draw)
    plain = by_reply(advantages(spec, step_of(made)), made)
    order = draw.sample(range(len(made)), len(made))
    names = draw.sample(range(50), 10)
    moved = [
        replace(made[i], group=names[made[i].group], rollout=99 - made[i].rollout) for i in order
    ]
    got = by_reply(advantages(spec, step_of(moved)), moved)
    for place, i in enumerate(order):
        assert got[place] == near(plain[i])


@pytest.mark.proof("advantage group", "invariance")
@pytest.mark.proof("advantage rloo", "invariance")
@pytest.mark.parametrize("kind", ["group", "rloo"])
def test_another_group_in_the_batch_changes_no_advantage(kind: str) -> None:
    classes = {"group": GroupAdvantage, "rloo": RlooAdvantage}
    spec = classes[kind](kind=kind)
    made = replies(random.Random(1))
    alone = [r for r in made if r.group == 0]
    whole = by_reply(advantages(spec, step_of(made)), made)
    got = by_reply(advantages(spec, step_of(alone)), alone)
    assert got == [near(w) for w, r in zip(whole, made, strict=True) if r.group == 0]


@pytest.mark.proof("{row}", "invariance")
@pytest.mark.parametrize(("row", "spec", "anew"), loss_cases())
@FEW
@given(seed=SEED)
def test_losses_do_not_depend_on_packing(row, spec, anew, seed: int) -> None:
    """Any order, any cut into micro-batches, a segment without tokens among them."""
    draw = random.Random(seed)
    made = micro(draw)
    made = Micro([*made.new, []], [*made.old, []], [*made.advantages, []])
    loss = policy_loss(spec)

    def parts(which: list[int] | None) -> dict[int, tuple[list[float], list[float], list[bool]]]:
        chosen = list(range(len(made.new))) if which is None else which
        tokens = made.inputs(which)
        found = loss(tokens)
        (by_token,) = torch.autograd.grad(found.loss_R.sum(), tokens.logprobs_R)
        sizes = [len(made.new[i]) for i in chosen]
        columns = (found.loss_R, by_token, found.is_clipped_R)
        rows = zip(*(column.split(sizes) for column in columns), strict=True)
        return {i: tuple(x.tolist() for x in row) for i, row in zip(chosen, rows, strict=True)}

    whole = parts(None)
    order = draw.sample(range(len(made.new)), len(made.new))
    cuts = sorted(draw.sample(range(1, len(order)), 2))
    for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True):
        for i, (values, by_token, clipped) in parts(order[low:high]).items():
            assert values == near(whole[i][0])
            assert by_token == near(whole[i][1])
            assert clipped == whole[i][2]


@pytest.mark.proof("weight {level}", "invariance")
@pytest.mark.proof("reject ratio", "invariance")
@pytest.mark.proof("reject veto", "invariance")
@pytest.mark.parametrize("level", get_args(Level))
@FEW
@given(seed=SEED)
def test_corrections_do_not_depend_on_order(level, seed: int) -> None:
    draw = random.Random(seed)
    made = micro(draw)
    spec = Correction(
        weight=Weight(level=level, high=1.5, normalize=True),
        reject=[
            Band(kind="ratio", level=level, low=0.4, high=1.8),
            Veto(kind="veto", floor=0.3),
        ],
    )

    def weights(order: list[int]) -> dict[int, list[float]]:
        tokens = made.inputs(order)
        got = corrected(
            spec, tokens.logprobs_R.detach(), tokens.old_logprobs_R, tokens.segment_R, len(order)
        )
        split = got.weights_R.split(tokens.num_trained_B.tolist())
        return {i: part.tolist() for i, part in zip(order, split, strict=True)}

    plain = weights(list(range(len(made.new))))
    moved = weights(draw.sample(range(len(made.new)), len(made.new)))
    assert moved == {i: near(row) for i, row in plain.items()}


@pytest.mark.proof("reject opsm", "invariance")
@FEW
@given(seed=SEED)
def test_off_policy_masking_does_not_depend_on_packing(seed: int) -> None:
    draw = random.Random(seed)
    made = micro(draw)

    def found(order: list[int]) -> dict[int, list[bool]]:
        tokens = made.inputs(order)
        got = off_policy_sequences(tokens, tokens.old_logprobs_R, delta=0.05)
        split = got.split(tokens.num_trained_B.tolist())
        return {i: part.tolist() for i, part in zip(order, split, strict=True)}

    order = draw.sample(range(len(made.new)), len(made.new))
    cut = draw.randrange(1, len(order))
    assert found(order[:cut]) | found(order[cut:]) == found(list(range(len(order))))


@pytest.mark.proof("aggregation {mean}", "invariance")
@pytest.mark.parametrize("mean", ["token_mean", "sequence_mean", "rollout_mean", "constant"])
@FEW
@given(seed=SEED)
def test_shares_follow_their_samples(mean, seed: int) -> None:
    """In any order and under any rollout numbers; the unit of a rollout goes to one sample."""
    draw = random.Random(seed)
    tokens = torch.tensor([draw.randrange(1, 9) for _ in range(12)])
    rollouts = torch.tensor([draw.randrange(5) for _ in range(12)])
    lengths = 8 + rollouts
    order = torch.tensor(draw.sample(range(12), 12))
    plain = shares(mean, tokens, rollouts, lengths)
    moved = shares(mean, tokens[order], 70 - 3 * rollouts[order], lengths[order])
    assert moved.weight_N.tolist() == near(plain.weight_N[order].tolist())
    assert moved.units_N.sum() == plain.units_N.sum()
    if mean in ("rollout_mean", "constant"):
        for rollout in rollouts.unique():
            assert plain.units_N[rollouts == rollout].sum() == 1


@pytest.mark.proof("kl {name}", "invariance")
@pytest.mark.proof("kl unbiased", "invariance")
@pytest.mark.proof("value loss", "invariance")
@pytest.mark.proof("supervised loss", "invariance")
@pytest.mark.proof("overlong", "invariance")
@pytest.mark.proof("lambda by length", "invariance")
@pytest.mark.parametrize("name", get_args(Estimator))
@FEW
@given(seed=SEED)
def test_what_is_of_one_token_or_sample_does_not_see_the_others(name, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    new, old, base = torch.randn(3, 12, generator=draw, dtype=torch.float64)
    lengths = torch.randint(1, 90, (12,), generator=draw)
    functions = [
        lambda i: kl_estimate(new[i], base[i], name),
        lambda i: unbiased_kl(new[i], old[i], base[i], name),
        lambda i: value_loss(new[i], old[i], base[i], clip=0.3)[0],
        lambda i: supervised_loss(new[i]),
        lambda i: overlong_penalty(lengths[i], torch.full_like(lengths, 64)[i], margin=0.5),
        lambda i: length_adaptive_lambda(lengths[i], 0.2),
    ]
    order = torch.randperm(12, generator=draw)
    for function in functions:
        whole = function(torch.arange(12))
        assert function(order).tolist() == near(whole[order].tolist())
        assert function(order[:5]).tolist() == near(whole[order[:5]].tolist())


@pytest.mark.proof("whitening", "invariance")
def test_neither_shift_nor_scale_changes_whitened_values() -> None:
    values = flat(micro(random.Random(1)).new)
    assert whitened(3 * values - 7).tolist() == pytest.approx(whitened(values).tolist(), abs=1e-7)


@pytest.mark.proof("mismatch metrics", "invariance")
@FEW
@given(seed=SEED)
def test_mismatch_does_not_depend_on_order(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    trainer, engine = torch.randn(2, 30, generator=draw, dtype=torch.float64)
    lags = torch.randint(0, 3, (30,), generator=draw)
    order = torch.randperm(30, generator=draw)
    plain = mismatch_metrics(trainer, engine, lags)
    assert mismatch_metrics(trainer[order], engine[order], lags[order]) == near(plain)
