"""Losses over sequences that 1, 2 and 4 gloo processes share: values and gradients to 1e-9.

World w is cut as context-parallel (each sequence's tokens dealt out to all ranks) and as
data-parallel (whole sequences dealt out); denominators are those of the whole mini-batch.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engines.algorithms.aggregation import shares
from engines.algorithms.corrections import off_policy_sequences
from engines.algorithms.inputs import LossInputs
from engines.algorithms.losses import (
    ClipLoss,
    Estimator,
    PairDpoLoss,
    PairIpoLoss,
    kl_estimate,
    policy_loss,
    supervised_loss,
    unbiased_kl,
    value_loss,
)
from engines.algorithms.sequence_sums import sequence_sums
from tests.parts.gloo_ranks import over_ranks
from tests.programs.proof.cases import loss_cases, micro

pytestmark = pytest.mark.unit

WORLD, SIZES = 4, (1, 2, 4)
MEANS = ("token_mean", "sequence_mean", "rollout_mean", "constant")
LAYOUTS = ("cp", "dp")
PAIR_B, SIGNS_B = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 3]), torch.tensor([1, -1] * 4 + [-1])
"""of each sequence: its pair, which lies on one data-parallel rank, and whether it is the better"""
Found = dict[str, list[float]]
"""by what was computed: the loss of the whole mini-batch, then each token's gradient"""


def whole() -> tuple[LossInputs, Tensor]:
    """A mini-batch, and the rollout of each sequence."""
    return micro(random.Random(11)).inputs(), torch.tensor([0, 1, 1, 2, 3, 4, 4, 4, 5])


def computed(mine_R: Tensor, group: dist.ProcessGroup | None, reduce: object) -> Found:
    """This rank's tokens only; the sums over ranks by `reduce`."""
    tokens, rollouts = whole()
    lengths = tokens.num_trained_B.clamp(min=6)
    part = LossInputs(
        logprobs_R=tokens.logprobs_R.detach()[mine_R].requires_grad_(),
        old_logprobs_R=tokens.old_logprobs_R[mine_R],
        advantages_R=tokens.advantages_R[mine_R],
        segment_R=tokens.segment_R[mine_R],
        num_trained_B=tokens.num_trained_B,
        cp_group=group,
    )
    base_R = part.old_logprobs_R - 0.3
    ones = shares("token_mean", tokens.num_trained_B, rollouts)
    results: Found = {}

    def record(name: str, loss_R: Tensor, made=ones) -> None:
        total = (loss_R * made.weight_N[part.segment_R]).sum() / made.units_N.sum()
        (by_token,) = torch.autograd.grad(total, part.logprobs_R)
        spread = torch.zeros(len(mine_R) + 1, dtype=torch.float64)
        spread[0] = total.detach()
        spread[1:][mine_R] = by_token
        results[name] = reduce(spread).tolist()

    for number, (row, spec, _) in enumerate(loss_cases()):
        record(f"{row} #{number}", policy_loss(spec)(part).loss_R)
    clip = policy_loss(ClipLoss(kind="clip"))
    for mean in MEANS:
        made = shares(mean, tokens.num_trained_B, rollouts, lengths)
        record(f"aggregation {mean}", clip(part).loss_R, made)
    paired = replace(
        part,
        advantages_R=SIGNS_B[part.segment_R],
        reference_R=base_R,
        pair_B=PAIR_B,
    )
    for spec in (PairDpoLoss(kind="dpo"), PairIpoLoss(kind="ipo")):
        record(f"loss {spec.kind}", policy_loss(spec)(paired).loss_R)
    for name in get_args(Estimator):
        record(f"kl {name}", kl_estimate(part.logprobs_R, base_R, name))
        weighed_R = unbiased_kl(part.logprobs_R, part.old_logprobs_R, base_R, name)
        record(f"kl unbiased #{name}", weighed_R)
    drifted_R = off_policy_sequences(part, part.old_logprobs_R, delta=0.05)
    record("reject opsm", clip(part).loss_R * ~drifted_R)
    targets_R = part.advantages_R
    record("value loss", value_loss(part.logprobs_R, part.old_logprobs_R, targets_R, clip=0.2)[0])
    record("supervised loss", supervised_loss(part.logprobs_R))
    return results


def share(rank: int) -> dict[tuple[int, str], Found]:
    """What this rank sees after the sums over ranks, by world size and layout."""
    results: dict[tuple[int, str], Found] = {}
    tokens, _ = whole()
    for size in SIZES:
        group = dist.new_group(list(range(size)))

        def reduce(values: Tensor, group=group) -> Tensor:
            dist.all_reduce(values, group=group)
            return values

        if rank < size:
            check_the_upstream_gradient(group)
        for layout in LAYOUTS if rank < size else ():
            places_R = torch.arange(len(tokens.segment_R))
            owner_R = places_R if layout == "cp" else PAIR_B[tokens.segment_R]
            cp_group = group if layout == "cp" else None
            results[size, layout] = computed(owner_R % size == rank, cp_group, reduce)
    return results


def check_the_upstream_gradient(group: dist.ProcessGroup) -> None:
    """Summed over ranks in a copy: autograd may give the same tensor to others."""
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    sums = sequence_sums(values, torch.tensor([0, 1]), 2, group=group)
    upstream = torch.ones(2)
    (found,) = torch.autograd.grad(sums, values, upstream)
    assert found.tolist() == [group.size()] * 2
    assert upstream.tolist() == [1, 1]
    assert sums.tolist() == [group.size(), 2 * group.size()]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[int, str], Found]]:
    return over_ranks(share, WORLD, tmp_path_factory.mktemp("ranks"))


def alone() -> Found:
    """One process, no group."""
    return computed(torch.ones(len(whole()[0].segment_R), dtype=torch.bool), None, lambda x: x)


NAMES = list(alone())


@pytest.mark.proof("{row}", "ranks")
@pytest.mark.parametrize(("row", "name"), [(name.partition(" #")[0], name) for name in NAMES])
def test_ranks_that_share_a_mini_batch_agree_with_one(row, name, ranks) -> None:
    wanted = alone()[name]
    assert max(map(abs, wanted)) > 1e-3
    for rank, found in enumerate(ranks):
        for size in SIZES:
            for layout in LAYOUTS if rank < size else ():
                assert found[size, layout][name] == pytest.approx(wanted, abs=1e-9)
