"""Attention over a pack is attention over each of its sequences: values and gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from engines.megatron import attention
from engines.megatron.attention import attend, has_varlen
from engines.megatron.parallel import Layout
from engines.megatron.spec import Parallel
from engines.megatron.train.pack import SHORT, FlatSequences, Pack, Spans, build_pack, runs

pytestmark = pytest.mark.unit

SCALE = 0.125
MIXED = [300, 7, 300, 520, 1, SHORT, SHORT + 1, 40]


@dataclass
class Tensors:
    """Of all sequences end to end."""

    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor

    @staticmethod
    def drawn(tokens: int, heads: int, groups: int, size: int) -> Tensors:
        torch.manual_seed(0)
        sizes = (heads, groups, groups, heads)
        query, key, value, upstream = (torch.randn(tokens, n, size) for n in sizes)
        for part in (query, key, value):
            part.requires_grad_()
        return Tensors(query, key, value, upstream)

    def gradients(self, out: Tensor) -> list[Tensor]:
        inputs = (self.query, self.key, self.value)
        return [out.detach(), *torch.autograd.grad(out, inputs, self.upstream)]


def one_by_one(
    given: Tensors, lengths: list[int], window: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """A loop over sequences with softmax written out, in float64."""
    heads, groups = given.query.size(1), given.key.size(1)
    pieces: list[Tensor] = []
    parts = (x.double().split(lengths) for x in (given.query, given.key, given.value))
    for query, key, value in zip(*parts, strict=True):
        seen = torch.ones(len(query), len(query)).tril().bool()
        if window is not None:
            seen &= ~torch.ones(len(query), len(query)).tril(-window).bool()
        key, value = (x.repeat_interleave(heads // groups, 1) for x in (key, value))
        scores = torch.einsum("qnd,knd->nqk", query, key) * SCALE
        scores = scores.masked_fill(~seen, -torch.inf)
        if sinks is not None:
            scores = torch.cat(
                [scores, sinks.double().view(-1, 1, 1).expand(-1, len(query), 1)], -1
            )
        weights = scores.softmax(-1)[..., : len(query)]
        pieces.append(torch.einsum("nqk,knd->qnd", weights, value))
    return torch.cat(pieces).float()


@pytest.mark.parametrize("window", [None, 9])
def test_a_sink_is_one_more_key_of_no_value_that_all_see(window: int | None) -> None:
    """Of each head its own, though two heads share a key: values, and gradients of the sinks."""
    lengths = [40, 7, 40, 23]
    given = Tensors.drawn(sum(lengths), heads=4, groups=2, size=8)
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0], requires_grad=True)
    (pack,) = packs(lengths, cp=1)
    parts = (given.query, given.key, given.value)
    found = attend(*(x[pack.input_ids[0]] for x in parts), pack, SCALE, window, sinks)
    upstream = given.upstream[pack.input_ids[0]]
    expected = one_by_one(given, lengths, window, sinks)[pack.input_ids[0]]
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    for ours, theirs in zip(
        torch.autograd.grad(found, (*parts, sinks), upstream),
        torch.autograd.grad(expected, (*parts, sinks), upstream),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, rtol=0, atol=2e-5)


def packs(lengths: list[int], cp: int, tp: int = 1) -> list[Pack]:
    """Of each context-parallel rank. The token ids are the tokens' places."""
    tokens = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    flat = FlatSequences.of(list(tokens), [[1] * length for length in lengths])
    parallel = Parallel(cp=cp, tp=tp)
    return [
        build_pack(flat, list(range(len(lengths))), Layout(parallel, rank, 0, 0, rank, 0))
        for rank in range(cp)
    ]


def by_packs(given: Tensors, lengths: list[int], cp: int, window: int | None = None) -> Tensor:
    """What the ranks of one group compute, put where the tokens belong."""
    ranks = packs(lengths, cp)
    held = torch.cat([pack.input_ids[0] for pack in ranks])
    whole = torch.zeros_like(given.query)
    starts = np.cumsum(lengths) - lengths
    for pack in ranks:
        own = pack.input_ids[0]
        rows = own if pack.key_rows is None else held[pack.key_rows]
        out = attend(given.query[own], given.key[rows], given.value[rows], pack, SCALE, window)
        # What pads a sequence to a multiple of 2 cp repeats its last token at a later position.
        sequence = np.searchsorted(starts, own.numpy(), side="right") - 1
        is_real = torch.from_numpy(starts[sequence]) + pack.positions == own
        whole = whole.index_copy(0, own[is_real], out[is_real])
    return whole


@pytest.mark.parametrize(
    ("lengths", "cp", "heads", "groups", "size", "window"),
    [
        (MIXED, 1, 4, 2, 32, None),
        (MIXED, 2, 4, 2, 32, None),
        (MIXED, 4, 4, 4, 16, None),
        ([40, 7, 23], 1, 6, 1, 24, None),
        ([40, 7, 23, 7], 2, 6, 1, 24, None),
        ([1], 1, 4, 2, 64, None),
        ([1, 1, 3], 2, 4, 2, 64, None),
        ([700], 1, 2, 2, 128, None),
        ([700], 2, 2, 1, 128, None),
        ([9, 9, 9], 1, 2, 1, 96, None),
        (MIXED, 1, 4, 2, 32, 30),
        (MIXED, 2, 4, 2, 32, 30),
        (MIXED, 4, 2, 1, 16, 300),
        ([40, 7, 23, 7], 2, 6, 1, 24, 1),
        ([40, 7, 23], 1, 6, 1, 24, 40),
    ],
)
def test_a_pack_attends_like_a_loop_over_its_sequences(
    lengths: list[int], cp: int, heads: int, groups: int, size: int, window: int | None
) -> None:
    given = Tensors.drawn(sum(lengths), heads, groups, size)
    ours = given.gradients(by_packs(given, lengths, cp, window))
    theirs = given.gradients(one_by_one(given, lengths, window))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).abs().max() < 1e-5


def test_only_short_sequences_are_padded_and_only_to_each_other() -> None:
    (pack,) = packs(MIXED, 1)
    sizes = [(block.count, block.queries, block.num_queries) for block in pack.blocks]
    short = 7 + 1 + SHORT + 40
    assert sizes == [(4, SHORT, short), (1, 257, 257), (2, 300, 600), (1, 520, 520)]
    slots = sum(block.count * block.queries for block in pack.blocks)
    assert slots == 4 * SHORT + 257 + 600 + 520
    assert pack.cu_seqlens_q.tolist() == np.cumsum([0, 7, 1, 256, 40, 257, 300, 300, 520]).tolist()
    assert pack.max_seqlen_q == 520


def test_short_sequences_keep_their_order() -> None:
    (pack,) = packs([9, 4, 6], 1)
    assert pack.input_ids[0].tolist() == list(range(19))
    (even,) = packs([5, 5], 1)
    assert even.slots is None


def test_a_context_parallel_rank_needs_the_keys_up_to_its_chunks_ends() -> None:
    """Two sequences of 8 and 4 in chunks of 2 and 1: rank 0 has chunks 0 and 3, rank 1 1 and 2."""
    first, second = packs([8, 4], 2)
    assert first.input_ids[0].tolist() == [8, 0, 1, 11, 6, 7]
    assert second.input_ids[0].tolist() == [9, 10, 2, 3, 4, 5]
    assert first.cu_seqlens_q.tolist() == [0, 1, 3, 4, 6]
    assert first.cu_seqlens_kv.tolist() == [0, 1, 3, 7, 15]
    assert second.cu_seqlens_kv.tolist() == [0, 2, 5, 9, 15]
    held = torch.cat([first.input_ids[0], second.input_ids[0]])
    assert first.key_rows is not None
    assert held[first.key_rows].tolist() == [8, 0, 1, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]


def test_runs_are_laid_end_to_end() -> None:
    assert runs(np.array([5, 0]), np.array([2, 3])).tolist() == [5, 6, 0, 1, 2]


def test_spans_cover_every_token_once_on_some_rank() -> None:
    lengths = np.array([16, 8, 24])
    seen = [pair for r in range(4) for pair in zip(*Spans.of(lengths, 4, r).tokens(), strict=True)]
    assert sorted(seen) == [(s, p) for s, length in enumerate(lengths) for p in range(length)]


def test_the_kernel_for_a_gpu_is_taken_where_it_fits() -> None:
    gpu, half = torch.device("cuda"), torch.bfloat16
    assert has_varlen(gpu, half, 128)
    assert not has_varlen(torch.device("cpu"), half, 128)
    assert not has_varlen(gpu, torch.float32, 128)
    assert not has_varlen(gpu, half, 20)
    assert not has_varlen(gpu, half, 512)


def test_the_kernel_for_a_gpu_gets_sequences_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the kernel, which has no version for a CPU: it takes the arguments of torch's
    and computes what torch documents."""
    from torch.nn.attention.varlen import varlen_attn

    taken: list[dict[str, object]] = []

    def stand_in(
        query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, *_: int,
        **options: object,
    ) -> Tensor:  # fmt: skip
        taken.append(options)
        pieces: list[Tensor] = []
        spans = zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:], strict=True)
        for first, last, first_key, last_key in spans:
            one = query[first:last], key[first_key:last_key], value[first_key:last_key]
            seen = torch.ones(len(one[0]), len(one[1])).tril(len(one[1]) - len(one[0])).bool()
            repeats = query.size(1) // key.size(1)
            keys, values = (x.repeat_interleave(repeats, 1) for x in one[1:])
            scores = torch.einsum("qnd,knd->nqk", one[0], keys) * SCALE
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            pieces.append(torch.einsum("nqk,knd->qnd", weights, values))
        return torch.cat(pieces)

    monkeypatch.setattr(attention, "has_varlen", lambda *_: True)
    monkeypatch.setattr(attention, "_varlen", lambda: stand_in)
    given = Tensors.drawn(sum(MIXED), 4, 2, 16)
    expected = one_by_one(given, MIXED).detach()
    for cp in (1, 2):
        ours = by_packs(given, MIXED, cp).detach()
        assert (ours - expected).abs().max() < 1e-5
    import inspect

    known = set(inspect.signature(varlen_attn).parameters)
    assert set(taken[0]) <= known
    assert taken[0]["window_size"] == (-1, 0)
    by_packs(given, MIXED, 1, window=30)
    assert taken[-1]["window_size"] == (29, 0)
