"""Products and a dense trunk on CPU in which no request feels what shares its batch.

A product of few rows goes through kernels that add up in another order than those for more, so a
request's last bits would change with the batch it shares. Here a thin batch is filled up with zero
rows first; from `FEWEST` rows on every row has the same bits, which a test measures.

The forward pass of a dense model makes few Python calls here between its products, where SGLang's
own makes about thirty per layer, which costs more than the products of a small model. The same
operations run in the same order on the same numbers, so every bit is the same; a test compares
them. Any model that is not plain (quantised, sharded, with adapters, in half precision) uses
SGLang's own.

Legend: N new tokens, A query and key heads together, W width of a head.

SGLang has no product on CPU for layers in FP8: their matrices are brought back to the type of the
other weights when a load or an update ends, and multiplied like those. So a CPU rounds matrices as
a GPU does, and nothing of what they are multiplied with.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import resolve_name
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.nn import functional
from torch.nn.functional import linear, rms_norm, silu

from engines.families.common.registry import served_families
from engines.weights.fp8_blocks import BLOCK, dequantised

FEWEST = 16
"""rows of the thinnest product. Measured in fp32, for 64 to 4864 inputs of a layer: nothing changes
with the number of rows from 4 on with AVX2, from 16 on with AVX-512 on CPUs that also have AMX"""

_VECTORS = 32
"""numbers that torch computes at once: two vectors of AVX-512"""


def filled_up(
    product: Callable[[torch.Tensor], torch.Tensor], input_RK: torch.Tensor
) -> torch.Tensor:
    """`product(input)` as if the input had at least `FEWEST` rows."""
    rows = input_RK.shape[0]
    if rows >= FEWEST:
        return product(input_RK)
    padded = input_RK.new_zeros(FEWEST, *input_RK.shape[1:])
    padded[:rows] = input_RK
    return product(padded)[:rows]


def install() -> None:
    """Put it under SGLang's unquantized linear layers, its output layer, routers and experts."""
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.layers.moe import fused_moe_native, topk
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    linear, head = UnquantizedLinearMethod.apply, LogitsProcessor._compute_lm_head

    def apply(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        return filled_up(lambda rows: linear(self, layer, rows, bias), x)

    def compute_lm_head(
        self: Any,
        hidden_states: torch.Tensor,
        lm_head: Any,
        embedding_bias: Any = None,
        *,
        out: Any = None,
    ) -> torch.Tensor:
        # `out` is a buffer that saves memory on GPU only.
        return filled_up(lambda rows: head(self, rows, lm_head, embedding_bias), hidden_states)

    UnquantizedLinearMethod.apply = apply
    LogitsProcessor._compute_lm_head = compute_lm_head
    _fill_up_products_of(fused_moe_native)
    topk.biased_grouped_topk_impl = _filled_routing(topk.biased_grouped_topk_impl)
    for family in served_families().values():
        _fill_up_products_of(import_module(family.sglang.partition(":")[0]))


def _filled_routing(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a choice of experts by sigmoids, of which torch takes the last few of a tensor one by
    one, by another algorithm than those that fill a vector: here all of them fill vectors."""

    def routed(
        hidden_states: torch.Tensor, gating_output: torch.Tensor, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = len(gating_output)
        added = (0, 0, 0, -rows % _VECTORS)
        padded = (functional.pad(given, added) for given in (hidden_states, gating_output))
        weights, ids = stock(*padded, *rest, **named)
        return weights[:rows], ids[:rows]

    return routed


def _fill_up_products_of(module: ModuleType) -> None:
    """Fill up the products that it computes by itself, with what it calls `F`."""

    def filled_linear(input_RK: torch.Tensor, *rest: Any) -> torch.Tensor:
        return filled_up(lambda rows: functional.linear(rows, *rest), input_RK)

    if getattr(module, "F", None) is functional:
        module.F = SimpleNamespace(**(vars(functional) | {"linear": filled_linear}))  # pyrefly: ignore[missing-attribute]


def forward(model: Any, input_ids: torch.Tensor, positions: torch.Tensor, batch: Any) -> Any:
    """The normed hidden states of a batch's new tokens."""
    residual = model.embed_tokens(input_ids)
    cos, sin = _rotation(model.layers[0].self_attn.rotary_emb, positions)
    for layer in model.layers:
        hidden = _normed(layer.input_layernorm, residual)
        residual = _attended(layer.self_attn, hidden, cos, sin, batch) + residual
        hidden = _normed(layer.post_attention_layernorm, residual)
        residual = _transformed(layer.mlp, hidden) + residual
    return _normed(model.norm, residual)


def _attended(
    attention: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: Any
) -> torch.Tensor:
    width, num_heads = attention.head_dim, attention.num_heads
    mixed = _product(attention.qkv_proj, hidden)
    size = attention.q_size + attention.kv_size
    heads_NAW = mixed[:, :size].view(len(hidden), -1, width)
    if hasattr(attention, "q_norm"):
        heads_NAW = _normed_heads(attention, heads_NAW)
    heads_NAW = _rotated(heads_NAW, cos, sin)
    query = heads_NAW[:, :num_heads].reshape(len(hidden), -1)
    value = mixed[:, size:].view(len(hidden), -1, width)
    attended = attention.attn(query, heads_NAW[:, num_heads:], value, batch)
    return _product(attention.o_proj, attended.view(len(hidden), -1))


def _normed_heads(attention: Any, heads_NAW: torch.Tensor) -> torch.Tensor:
    """Each query head by the one norm, each key head by the other."""
    num_heads = attention.num_heads
    variance = heads_NAW.pow(2).mean(dim=-1, keepdim=True)
    normed = heads_NAW * torch.rsqrt(variance.add_(attention.q_norm.variance_epsilon))
    normed[:, :num_heads] *= attention.q_norm.weight
    normed[:, num_heads:] *= attention.k_norm.weight
    return normed


def _rotation(rotary: Any, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [N, 1, 1, W / 2] each."""
    found = rotary.cos_sin_cache.index_select(0, positions.flatten())
    cos, sin = found.view(len(found), 1, 1, -1).chunk(2, dim=-1)
    return cos, sin


def _rotated(heads_NAW: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Each head's halves turned against each other, as NeoX lays them out."""
    halves = heads_NAW.unflatten(-1, (2, -1))
    turned, across = halves * cos, halves * sin
    turned[:, :, 0] -= across[:, :, 1]
    turned[:, :, 1] += across[:, :, 0]
    return turned.flatten(-2)


def _transformed(mlp: Any, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = _product(mlp.gate_up_proj, hidden).chunk(2, dim=-1)
    return _product(mlp.down_proj, silu(gate).mul_(up))


def _normed(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden, (norm.hidden_size,), norm.weight, norm.variance_epsilon)


def _product(layer: Any, rows: torch.Tensor) -> torch.Tensor:
    return filled_up(lambda filled: linear(filled, layer.weight, layer.bias), rows)


def is_plain(model: Any) -> bool:
    """Return whether `forward` is all that this model's layers do."""
    from sglang.srt.layers import linear as linears
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
    from sglang.srt.runtime_context import get_parallel

    def norm_is_plain(norm: Any) -> bool:
        casts = norm.cast_x_before_out_mul or norm.override_orig_dtype or norm.fp32_residual
        return type(norm) is RMSNorm and norm.variance_size_override is None and not casts

    def product_is_plain(layer: Any, kind: type) -> bool:
        unquantized = type(getattr(layer, "quant_method", None)) is UnquantizedLinearMethod
        return type(layer) is kind and unquantized and not layer.skip_bias_add

    def rotary_is_plain(rotary: Any) -> bool:
        method = getattr(type(rotary), "forward_native", None)
        whole = method is RotaryEmbedding.forward_native and rotary.rotary_dim == rotary.head_size
        return whole and rotary.is_neox_style and rotary.cos_sin_cache.dtype is torch.float32

    def layer_is_plain(layer: Any) -> bool:
        attention, mlp = layer.self_attn, layer.mlp
        of_heads: list[Any] = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        same = of_heads == [None, None] or (
            all(norm_is_plain(norm) for norm in of_heads)
            and of_heads[0].variance_epsilon == of_heads[1].variance_epsilon
        )
        return (
            same
            and norm_is_plain(layer.input_layernorm)
            and norm_is_plain(layer.post_attention_layernorm)
            and product_is_plain(attention.qkv_proj, linears.QKVParallelLinear)
            and product_is_plain(attention.o_proj, linears.RowParallelLinear)
            and product_is_plain(mlp.gate_up_proj, linears.MergedColumnParallelLinear)
            and product_is_plain(mlp.down_proj, linears.RowParallelLinear)
            and rotary_is_plain(attention.rotary_emb)
            and attention.rotary_emb is model.layers[0].self_attn.rotary_emb
            and type(mlp.act_fn) is SiluAndMul
        )

    return (
        get_parallel().tp_size == 1
        and model.pp_group.world_size == 1
        and all(parameter.dtype is torch.float32 for parameter in model.parameters())
        and norm_is_plain(model.norm)
        and all(layer_is_plain(layer) for layer in model.layers)
    )


def install_trunk() -> None:
    """Put it under the families that say that it computes what they do."""
    named = [family.sglang_dense for family in served_families().values()]
    for name in dict.fromkeys(filter(None, named)):
        trunk = resolve_name(name)
        trunk.forward = _either(trunk.forward)


def _either(stock: Callable[..., Any]) -> Callable[..., Any]:
    plain: dict[int, bool] = {}

    def chosen(
        self: Any,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        if id(self) not in plain:
            plain[id(self)] = is_plain(self)
        usual = input_embeds is None and pp_proxy_tensors is None and len(input_ids) > 0
        # `tributary align` listens to modules, which only SGLang's own code calls.
        usual = usual and not self.norm._forward_hooks
        if plain[id(self)] and usual and not self.layers_to_capture:
            return forward(self, input_ids, positions, forward_batch)
        return stock(self, input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)

    return chosen


def install_fp8() -> None:
    """Put it under SGLang's layers of FP8 in blocks."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod, Fp8MoEMethod

    Fp8Config.get_supported_act_dtypes = classmethod(_types)  # pyrefly: ignore[bad-assignment]
    Fp8LinearMethod.process_weights_after_loading = _unpack_matrix
    Fp8LinearMethod.apply = _multiplied
    Fp8MoEMethod.process_weights_after_loading = _unpack_experts
    Fp8MoEMethod.apply = _of_experts


def _types(_config: Any) -> list[torch.dtype]:
    return [torch.float32, torch.bfloat16]


def _unpack_matrix(self: Any, layer: Any) -> None:
    layer.plain = _plain(layer.weight, layer.weight_scale_inv, layer.orig_dtype)


def _unpack_experts(self: Any, layer: Any) -> None:
    dtype = layer.params_dtype
    layer.plain = SimpleNamespace(
        num_experts=layer.num_experts,
        w13_weight=_of_each(layer.w13_weight, layer.w13_weight_scale_inv, dtype),
        w2_weight=_of_each(layer.w2_weight, layer.w2_weight_scale_inv, dtype),
    )


def _of_each(weights: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([_plain(*pair, dtype) for pair in zip(weights, scales, strict=True)])


def _plain(weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return dequantised(weight.data, scales.data, (BLOCK, BLOCK), dtype)


def _multiplied(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
    return filled_up(lambda rows: linear(rows, layer.plain, bias), x)


def _of_experts(self: Any, layer: Any, dispatch_output: Any) -> Any:
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    found = moe_forward_native(
        layer.plain,
        dispatch_output.hidden_states,
        dispatch_output.topk_output,
        self.moe_runner_config,
    )
    return StandardCombineInput(hidden_states=found)
