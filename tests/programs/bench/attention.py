"""Attention over a long-tailed pack, forward and backward: without padding, padded, one by one.

One sequence of 8k tokens among forty of 200: padded, each of them takes as long as the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.programs.bench.clock import timed
from tests.programs.bench.rows import Row

if TYPE_CHECKING:
    from torch import Tensor

    from engines.megatron.train.pack import Pack

LENGTHS = [200] * 20 + [8192] + [200] * 20
HEADS, GROUPS, SIZE = 2, 1, 16
SCALE = SIZE**-0.5


def measure() -> list[Row]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    heads = (HEADS, GROUPS, GROUPS, HEADS)
    given = [torch.randn(sum(LENGTHS), n, SIZE) for n in heads]
    packed, ours = _timed(partial(_packed, _pack()), given)
    alone, theirs = _timed(_one_by_one, given)
    padded, _ = _timed(_padded, given)
    apart = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    note = (
        f"forward and backward, {LENGTHS.count(200)} sequences of 200 tokens and one of 8192,"
        f" {HEADS} heads of {SIZE}, fp32"
    )
    return [
        Row(
            "packed attention, CPU time over padded", packed / padded, "ratio", 0.25, True,
            f"{packed:.2f} s against {padded:.1f} s; {note}",
        ),
        Row(
            "packed attention, CPU time over a loop", packed / alone, "ratio",
            note=f"{alone:.2f} s one by one; {note}",
        ),
        Row("packed attention, difference from a loop", apart, "max", 1e-5, True, note),
    ]  # fmt: skip


def _timed(attend: Callable[..., Tensor], given: list[Tensor]) -> tuple[float, list[Tensor]]:
    """CPU seconds; the output and the gradients of query, key and value."""
    import torch

    *inputs, upstream = given
    found: list[Tensor] = []
    inputs = [x.clone().requires_grad_() for x in inputs]

    def there_and_back() -> None:
        out = attend(*inputs)
        found[:] = [out.detach(), *torch.autograd.grad(out, inputs, upstream)]

    return timed(there_and_back).cpu, found


def _pack() -> Pack:
    """As the trainer lays it out: what is long comes last."""
    import torch

    from engines.megatron.parallel import Layout
    from engines.megatron.spec import Parallel
    from engines.megatron.train.pack import FlatSequences, build_pack

    tokens = torch.arange(sum(LENGTHS)).split(LENGTHS)
    flat = FlatSequences.of([t.numpy() for t in tokens], [[1] * n for n in LENGTHS])
    return build_pack(flat, list(range(len(LENGTHS))), Layout(Parallel(), 0, 0, 0, 0, 0))


def _packed(pack: Pack, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    import torch

    from engines.megatron.attention import attend

    order = pack.input_ids[0]
    out = attend(query[order], key[order], value[order], pack, SCALE)
    return torch.empty_like(out).index_copy(0, order, out)


def _one_by_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    import torch

    parts = (x.split(LENGTHS) for x in (query, key, value))
    return torch.cat([_causal(*(x[None] for x in one))[0] for one in zip(*parts, strict=True)])


def _padded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    whole = [pad_sequence(list(x.split(LENGTHS)), batch_first=True) for x in (query, key, value)]
    out = _causal(*whole)
    return torch.cat([row[:n] for row, n in zip(out, LENGTHS, strict=True)])


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, S, heads, D] -> the same."""
    import torch.nn.functional as F

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    out = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=SCALE, enable_gqa=True
    )
    return out.transpose(1, 2)
