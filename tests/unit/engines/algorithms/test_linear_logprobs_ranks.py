"""Logprobs from hidden states with the vocabulary shared by 1, 2 and 4 gloo processes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engines.algorithms import linear_logprobs as module
from engines.algorithms.divergences import top_logprobs
from engines.algorithms.linear_logprobs import linear_logprobs
from engines.memory import activations as tiling
from tests.parts.gloo_ranks import over_ranks

pytestmark = pytest.mark.unit

ROWS, HIDDEN, VOCAB, WORLD = 9, 6, 24, 4
SIZES = (1, 2, 4)
COLUMNS = (5, VOCAB)
SEVERAL = 0
"""in place of a tile's columns: where several tokens of a row are asked for"""
TEMPERATURE = 0.8


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, HIDDEN, generator=draw)
    weight = 1.5 * torch.randn(VOCAB, HIDDEN, generator=draw)
    labels = torch.randint(0, VOCAB, (ROWS,), generator=draw)
    labels[:4] = torch.tensor([0, 6, 12, 18])  # the first of each rank's part
    return hidden, weight, labels, torch.randn(2, ROWS, generator=draw)


Found = dict[tuple[int, int, bool], list[np.ndarray]]


def share(rank: int) -> Found:
    """What this rank gets by number of ranks, columns of a tile and whether it is fused: logprobs,
    entropies, gradients of hidden and of its part of the weight."""
    tiling.MIN_COLUMNS, tiling.KEPT_BYTES = 1, 500
    module._compiled = lambda function: function
    results: Found = {}
    hidden, whole, labels, upstream = inputs()
    for size in SIZES:
        group = dist.new_group(list(range(size)))
        cases = product(COLUMNS, (False, True))
        for columns, fused in cases if rank < size else ():
            tiling.TILE_BYTES["cpu"] = 4 * ROWS * columns
            part = whole.chunk(size)[rank]
            leaves = [t.clone().requires_grad_() for t in (hidden, part)]
            found = linear_logprobs(
                *leaves, labels, temperature=TEMPERATURE, group=group, fused=fused
            )
            grads = torch.autograd.grad((torch.stack(found) * upstream).sum(), leaves)
            results[size, columns, fused] = [t.detach().numpy() for t in (*found, *grads)]
        if rank < size:
            results[size, SEVERAL, False] = several(hidden, whole.chunk(size)[rank], group)
    return results


def several(hidden: Tensor, part: Tensor, group: dist.ProcessGroup) -> list[np.ndarray]:
    """The likeliest tokens of each row, their logprobs by both ways, and hidden's gradient."""
    leaf = hidden.clone().requires_grad_()
    top, ids = top_logprobs(leaf.detach(), part, 4, temperature=TEMPERATURE, group=group)
    again, _ = linear_logprobs(leaf, part, ids, temperature=TEMPERATURE, group=group)
    (gradient,) = torch.autograd.grad((again * again.detach()).sum(), leaf)
    return [t.detach().numpy() for t in (ids, top, again, gradient)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return over_ranks(share, WORLD, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.proof("logprobs and entropy", "ranks")
def test_ranks_that_share_the_vocabulary_agree_with_float64(
    size: int, columns: int, fused: bool, ranks: list[Found]
) -> None:
    hidden, weight, labels, upstream = inputs()
    leaves = [t.double().requires_grad_() for t in (hidden, weight)]
    distribution = (leaves[0] @ leaves[1].t() / TEMPERATURE).log_softmax(-1)
    logprobs = distribution.gather(1, labels[:, None])[:, 0]
    scores = torch.stack([logprobs, -(distribution.exp() * distribution).sum(-1)])
    by_hidden, by_weight = torch.autograd.grad((scores * upstream).sum(), leaves)
    for rank in range(size):
        wanted = (*scores.detach(), by_hidden, by_weight.chunk(size)[rank])
        for mine, theirs in zip(ranks[rank][size, columns, fused], wanted, strict=True):
            assert np.abs(mine - theirs.numpy()).max() < 1e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.proof("loss divergence", "ranks")
def test_the_likeliest_tokens_of_a_shared_vocabulary(size: int, ranks: list[Found]) -> None:
    hidden, weight, *_ = inputs()
    leaf = hidden.double().requires_grad_()
    distribution = (leaf @ weight.double().t() / TEMPERATURE).log_softmax(-1)
    top, ids = distribution.topk(4)
    rest = distribution.exp().scatter(1, ids, 0).sum(1, keepdim=True).log()
    (gradient,) = torch.autograd.grad((top * top.detach()).sum(), leaf)
    for rank in range(size):
        found = ranks[rank][size, SEVERAL, False]
        assert (found[0] == ids.numpy()).all()
        for mine, theirs in zip(found[1:], (torch.cat([top, rest], 1), top, gradient), strict=True):
            assert mine == pytest.approx(theirs.detach().numpy(), rel=1e-5, abs=2e-5)
