"""Attention of a whole batch in one call, for SGLang's `torch_native` backend on CPU.

The stock backend calls scaled-dot-product attention once per request and layer. Here requests are
padded to the longest and go through one call per layer; index and mask are made once per forward
pass and shared by all layers, or by those with a sliding window and by the others.

A token's result has the same bits whatever shares its batch, is cached or was prefilled with it:
every query is computed as a decoding one (several new tokens of a request lie side by side as
further heads), and lengths are whole blocks of `BLOCK`, the width at which the kernel's sums over
positions stop depending on how many masked ones follow.

Legend: B requests, Q longest new part, L longest sequence, H query heads, G key-value heads,
R = H / G query heads that share one, D width.

Latent attention (MLA) of SGLang's DeepSeek classes takes a way of its own: SGLang's backend for
CPUs without AMX reads keys and values from a cache of latents, so that every pass has to take the
way on which queries are brought to the latents' space. The products of that way are filled up as
all others are (`row_invariant.py`).
"""

# ruff: noqa: SLF001

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from engines.sglang.cpu.row_invariant import FEWEST

BLOCK = 16
_MASK_ENTRIES = 1 << 22
"""most entries of one call's mask: a long prompt goes in several calls, with the same result"""

_rooms: dict[int, torch.Tensor] = {}
"""memory for gathered keys (0) and values (1)"""


@dataclass(slots=True)
class _Plan:
    """Positions of a batch's queries and cached keys."""

    slots_BL: torch.Tensor
    """cache slot of every position; slot 0 where there is none"""
    mask_BQL: torch.Tensor
    """added to a query's scores: 0 where it may see a position, else -inf"""
    rows: torch.Tensor | None
    """place of each new token in the padded [B * Q]; None when every request has one"""
    num_queries: int


def _plan(
    slots: torch.Tensor,
    pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    prefix_lens: torch.Tensor | None,
    window: int | None,
) -> _Plan:
    """`prefix_lens` is None while decoding: the one query of a request is its last position.
    `window`: how many positions before its own a query sees; None: all."""
    longest = -(-int(seq_lens.max()) // BLOCK) * BLOCK
    # A request may fill its row of the table to the end; the block then reaches beyond it.
    columns = torch.arange(longest).clamp_(max=slots.shape[1] - 1)
    position_L = torch.arange(longest)
    if prefix_lens is None:
        num_queries, rows = 1, None
        last_seen_BQ = (seq_lens - 1).unsqueeze(1)
    else:
        new_B = seq_lens - prefix_lens
        num_queries = int(new_B.max())
        query_Q = torch.arange(num_queries)
        rows = (query_Q < new_B.unsqueeze(1)).view(-1).nonzero().view(-1)
        # A padded query sees what the last real one sees: a row with nothing visible would be NaN.
        last_seen_BQ = torch.minimum(prefix_lens.unsqueeze(1) + query_Q, (seq_lens - 1)[:, None])
    absent_BL = position_L >= seq_lens.unsqueeze(1)
    slots_BL = slots[pool_indices][:, columns].long().masked_fill_(absent_BL, 0)
    unseen_BQL = position_L > last_seen_BQ.unsqueeze(2)
    if window is not None:
        unseen_BQL |= position_L < last_seen_BQ.unsqueeze(2) - window
    mask_BQL = torch.zeros(unseen_BQL.shape).masked_fill_(unseen_BQL, float("-inf"))
    return _Plan(slots_BL, mask_BQL, rows, num_queries)


def _attend(
    plan: _Plan,
    query: torch.Tensor,
    output: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`query` and `output` are [new tokens, H, D], the caches [slots, G, D]. `sinks`: of each head
    the score of one more block of keys, all but the first unseen, of no value.

    The values of latent attention are the first numbers of its keys. All of them are attended to,
    and the first kept: torch's kernel, whose bits do not change with the batch, takes keys and
    values of one size only.
    """
    batch, num_queries = plan.slots_BL.shape[0], plan.num_queries
    is_latent = values.shape != keys.shape and values.data_ptr() == keys.data_ptr()
    keys_BGLD = _gathered(keys, plan.slots_BL, 0, query.dtype)
    values_BGLD = keys_BGLD if is_latent else _gathered(values, plan.slots_BL, 1, query.dtype)
    mask_BQL = plan.mask_BQL.to(query.dtype)
    if sinks is not None:
        keys_BGLD, values_BGLD = (pad(x, (0, 0, 0, BLOCK)) for x in (keys_BGLD, values_BGLD))
    if plan.rows is None:
        mask = _with_sinks(mask_BQL.unsqueeze(1), sinks)
        attended_BHD = scaled_dot_product_attention(
            query.unsqueeze(2), keys_BGLD, values_BGLD, mask, scale=scaling, enable_gqa=True
        ).squeeze(2)  # fmt: skip
        output.copy_(attended_BHD[..., : output.shape[-1]])
        return output
    padded = query.new_zeros(batch * num_queries, *query.shape[1:])
    padded[plan.rows] = query
    query_BQHD = padded.view(batch, num_queries, *query.shape[1:])
    at_once = max(1, _MASK_ENTRIES // (batch * query.shape[1] * mask_BQL.shape[2]))
    attended_BQHD = torch.cat(
        [
            _as_heads(part_BQHD, keys_BGLD, values_BGLD, part_BQL, scaling, sinks)
            for part_BQHD, part_BQL in zip(
                query_BQHD.split(at_once, 1), mask_BQL.split(at_once, 1), strict=True
            )
        ],
        dim=1,
    )
    output.copy_(attended_BQHD.flatten(0, 1)[plan.rows][..., : output.shape[-1]])
    return output


def _gathered(
    cache: torch.Tensor, slots_BL: torch.Tensor, which: int, dtype: torch.dtype
) -> torch.Tensor:
    """The cached entries of every position, [B, G, L, D]; valid until the next call's.

    They lie in memory that all calls share: fresh memory for each costs more than the attention.
    """
    needed = slots_BL.numel()
    room = _rooms.get(which)
    if room is None or len(room) < needed or room.shape[1:] != cache.shape[1:]:
        room = _rooms[which] = cache.new_empty(needed * 5 // 4, *cache.shape[1:])
    found = torch.index_select(cache, 0, slots_BL.view(-1), out=room[:needed])
    return found.view(*slots_BL.shape, *cache.shape[1:]).to(dtype).transpose(1, 2)


def _as_heads(
    query_BQHD: torch.Tensor,
    keys_BGLD: torch.Tensor,
    values_BGLD: torch.Tensor,
    mask_BQL: torch.Tensor,
    scaling: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of Q queries a request, each by itself: query (g, r, q) is a head of length 1."""
    batch, num_queries, heads, width = query_BQHD.shape
    mask = _with_sinks(mask_BQL.unsqueeze(1), sinks).expand(-1, heads, -1, -1)
    mask = mask.reshape(batch, heads * num_queries, 1, -1)
    attended = scaled_dot_product_attention(
        query_BQHD.transpose(1, 2).reshape(batch, heads * num_queries, 1, width),
        keys_BGLD, values_BGLD, mask, scale=scaling, enable_gqa=True,
    )  # fmt: skip
    return attended.view(batch, heads, num_queries, -1).transpose(1, 2)


def _with_sinks(mask_B1QL: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The mask of each head, with a further block in which its sink is."""
    if sinks is None:
        return mask_B1QL
    batch, _, queries, _ = mask_B1QL.shape
    block = mask_B1QL.new_full((len(sinks), 1, BLOCK), float("-inf"))
    block[:, 0, 0] = sinks.to(block.dtype)
    shape = (batch, len(sinks), queries, -1)
    return torch.cat([mask_B1QL.expand(shape), block.expand(shape)], -1)


def _as_one_with_sinks(stock: Any, arguments: Any) -> tuple[Any, ...]:
    """Answer SGLang, which starts no gpt-oss on a backend that it knows to have no sinks."""
    return tuple("intel_amx" if name == "torch_native" else name for name in stock(arguments))


def _with_the_sinks_of(stock: Any) -> Any:
    def forward(self: Any, *given: Any, sinks: torch.Tensor | None = None, **named: Any) -> Any:
        self.tributary_sinks = sinks
        return stock(self, *given, **named)

    return forward


def install() -> None:
    """Put the batched calls into SGLang's `torch_native` backend, which then has sinks too.

    Cross attention and encoders keep the stock loop.
    """
    from sglang.srt.arg_groups import model_hook
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    model_hook.attention_backends_of = partial(_as_one_with_sinks, model_hook.attention_backends_of)
    for name in ("forward_extend", "forward_decode"):
        stock = getattr(TorchNativeAttnBackend, name)
        setattr(TorchNativeAttnBackend, name, _with_the_sinks_of(stock))

    stock_metadata = TorchNativeAttnBackend.init_forward_metadata
    stock_extend = TorchNativeAttnBackend._run_sdpa_forward_extend
    stock_decode = TorchNativeAttnBackend._run_sdpa_forward_decode

    def metadata(self: Any, forward_batch: Any) -> None:
        stock_metadata(self, forward_batch)
        self.tributary_plans = {}

    def extend(
        self: Any,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        if not causal or encoder_lens is not None or is_cross_attn:
            return stock_extend(
                self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens,
                extend_prefix_lens, extend_seq_lens, encoder_lens, scaling, enable_gqa, causal,
                is_cross_attn, sliding_window_size,
            )  # fmt: skip
        if (plan := self.tributary_plans.get(sliding_window_size)) is None:
            plan = self.tributary_plans[sliding_window_size] = _plan(
                req_to_token, req_pool_indices, seq_lens, extend_prefix_lens, sliding_window_size
            )
        return _attend(plan, query, output, k_cache, v_cache, scaling, self.tributary_sinks)

    def decode(
        self: Any,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        if encoder_lens is not None or is_cross_attn:
            return stock_decode(
                self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens,
                encoder_lens, scaling, enable_gqa, causal, is_cross_attn, sliding_window_size,
            )  # fmt: skip
        if (plan := self.tributary_plans.get(sliding_window_size)) is None:
            plan = self.tributary_plans[sliding_window_size] = _plan(
                req_to_token, req_pool_indices, seq_lens, None, sliding_window_size
            )
        return _attend(plan, query, output, k_cache, v_cache, scaling, self.tributary_sinks)

    TorchNativeAttnBackend.init_forward_metadata = metadata
    TorchNativeAttnBackend._run_sdpa_forward_extend = extend
    TorchNativeAttnBackend._run_sdpa_forward_decode = decode


class FilledTorch:
    """torch, with products of as many rows at least as `filled_up` has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def bmm(
        input_NRK: torch.Tensor, weight_NKC: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = input_NRK.shape[1]
        padded = torch.nn.functional.pad(input_NRK, (0, 0, 0, max(FEWEST - rows, 0)))
        found = torch.bmm(padded, weight_NKC)[:, :rows]
        return found if out is None else out.copy_(found)


def install_latent() -> None:
    """Put it under SGLang's attention of DeepSeek models."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope
    from sglang.srt.models import deepseek_v2
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
        AttnForwardMethod,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods import forward_mla

    def absorbed(_attention: Any, _batch: Any) -> Any:
        return AttnForwardMethod.MLA

    AttentionBackendRegistry.register("torch_native", absorbed)
    forward_mla.torch = FilledTorch()  # pyrefly: ignore[bad-assignment]
    deepseek_v2.get_rope_wrapper = partial(_rope, get_rope, deepseek_v2.get_rope_wrapper)


def _rope(plain: Any, stock: Any, *sizes: Any, device: Any = None, **named: Any) -> Any:
    """On CPU SGLang knows rotary embedding of these models with YaRN only, and plain everywhere."""
    if named.get("rope_scaling") is None:
        return plain(*sizes, **named)
    return stock(*sizes, device=device, **named)
