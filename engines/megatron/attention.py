"""Causal attention of a pack's sequences, each over itself only and without padding between them.

On a GPU in half precision one kernel takes all sequences (`torch.nn.attention.varlen`). Everywhere
else torch's scaled_dot_product_attention takes one block of equal sequences after the other. Axes:
T queries, K keys, N heads, G KV heads, D head size.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from engines.megatron.train.pack import Block

if TYPE_CHECKING:
    from engines.megatron.train.pack import Pack

_HALF = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
"""of the flash kernels; also a multiple of 8"""


def attend(
    query_TND: Tensor,
    key_KGD: Tensor,
    value_KGD: Tensor,
    pack: Pack,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[T, N, D]. Keys and values are those of the pack's spans, end to end. `window`: tokens that
    one sees, itself among them; None: all before it. `sinks`: of each head the score of one more
    key, whose value is nothing."""
    if sinks is None and has_varlen(query_TND.device, query_TND.dtype, query_TND.size(-1)):
        return _varlen()(
            query_TND,
            key_KGD,
            value_KGD,
            pack.cu_seqlens_q,
            pack.cu_seqlens_kv,
            pack.max_seqlen_q,
            pack.max_seqlen_kv,
            scale=scale,
            # Causal, aligned at the end of queries and keys.
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query_TND.size(1) != key_KGD.size(1),
        )
    return by_block(query_TND, key_KGD, value_KGD, pack.blocks, pack.slots, scale, window, sinks)


def has_varlen(place: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Return whether torch's kernel for sequences of several lengths takes such tensors."""
    fits = head_size <= _LARGEST_HEAD and head_size % 8 == 0
    return place.type == "cuda" and dtype in _HALF and fits and _knows_grouped_heads()


@functools.cache
def _knows_grouped_heads() -> bool:
    """torch 2.13's `varlen_attn` does; earlier ones lack it, or take other arguments."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    return {"window_size", "enable_gqa"} <= set(inspect.signature(_varlen()).parameters)


def _varlen() -> Callable[..., Any]:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def by_block(
    query_TND: Tensor,
    key_KGD: Tensor,
    value_KGD: Tensor,
    blocks: Sequence[Block],
    slots: Tensor | None,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[T, N, D]. `slots`: where the first block's tokens go when its spans are padded."""
    if len(blocks) == 1:
        return _one_block(query_TND, key_KGD, value_KGD, blocks[0], slots, scale, window, sinks)
    queries = query_TND.split([block.num_queries for block in blocks])
    num_keys = [block.num_keys for block in blocks]
    keys, values = key_KGD.split(num_keys), value_KGD.split(num_keys)
    return torch.cat(
        [
            _one_block(query, key, value, block, slots if i == 0 else None, scale, window, sinks)
            for i, (query, key, value, block) in enumerate(
                zip(queries, keys, values, blocks, strict=True)
            )
        ]
    )


def _one_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block: Block,
    slots: Tensor | None,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    query, key, value = (
        _by_span(x, block.count, length, slots)
        for x, length in ((query, block.queries), (key, block.keys), (value, block.keys))
    )
    seen, width = min(window or block.keys, block.keys), value.size(-1)
    if sinks is not None:
        query, key, value = _with_sinks(query, key, value, sinks / scale)
    if sinks is not None or seen < block.keys:
        mask: Any = _beyond_window(
            block.queries, block.keys, seen, sinks is not None, query.dtype, query.device
        )
    else:
        mask = None if block.is_square else causal_lower_right(block.queries, block.keys)
    # Padding comes after a sequence's end: no token before it sees it.
    out: Tensor = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.size(1) != key.size(1),
    )
    flat = out[..., :width].transpose(1, 2).reshape(-1, out.size(1), width)
    return flat if slots is None else flat.index_select(0, slots)


def _with_sinks(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Put one more key before the others, of no value, whose product with each head's query is that
    head's sink. For that heads have as many numbers more as heads share a key: one of a query's is
    1. A mask with the sinks in it would be of the size of all heads' scores."""
    shared = query.size(1) // key.size(1)
    ones = torch.eye(shared, dtype=query.dtype, device=query.device).repeat(key.size(1), 1)
    query = torch.cat([query, ones[None, :, None].expand(*query.shape[:3], -1)], -1)
    first = F.pad(sinks.to(key.dtype).view(1, -1, 1, shared), (key.size(-1), 0))
    key = torch.cat([first.expand(len(key), -1, -1, -1), F.pad(key, (0, shared))], 2)
    return query, key, F.pad(value, (0, shared, 1, 0))


@functools.lru_cache(maxsize=4)
def _beyond_window(
    queries: int, keys: int, window: int, has_sink: bool, dtype: torch.dtype, place: torch.device
) -> Tensor:
    """[queries, keys]: -inf where a token does not see a key, else 0. Queries are the last of the
    keys' tokens. `has_sink`: with a key before the others that all see. All layers share one, which
    they keep until their backward passes."""
    key = torch.arange(keys, device=place)
    before = key[keys - queries :, None] - key
    unseen = F.pad((before < 0) | (before >= window), (int(has_sink), 0))
    return torch.zeros(unseen.shape, dtype=dtype, device=place).masked_fill_(unseen, -torch.inf)


def _by_span(x_TND: Tensor, count: int, longest: int, slots: Tensor | None) -> Tensor:
    """[T, N, D] -> [P, N, longest, D], zeros where a span is shorter."""
    if slots is not None:
        x_TND = x_TND.new_zeros(count * longest, *x_TND.shape[1:]).index_copy(0, slots, x_TND)
    return x_TND.reshape(count, longest, *x_TND.shape[1:]).transpose(1, 2)
