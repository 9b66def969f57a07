"""Our own core attention and norm, as parts of Megatron's plain layer spec.

They run wherever torch's attention and rms_norm do, so CPU and GPU share parameter names, maps and
checkpoints. Axes: T tokens of this rank's pack, N heads, G KV heads, D head size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from engines.megatron.attention import attend
from engines.megatron.rotary import Rotate
from engines.megatron.train.pack import Pack


class PackedAttention(MegatronModule):
    """Causal attention of a pack's sequences, each over itself only."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(["cp"])
        self.cp_group: dist.ProcessGroup = groups.cp
        head_size: Any = k_channels or config.kv_channels
        self.scale = softmax_scale or 1.0 / math.sqrt(head_size)

    def forward(
        self,
        query_TND: Tensor,
        key_TGD: Tensor,
        value_TGD: Tensor,
        attention_mask: Tensor | None = None,
        *,
        packed_seq_params: Pack,
        **_: Any,
    ) -> Tensor:
        """[T, N * D]."""
        pack = packed_seq_params
        query_TND = Rotate.apply(query_TND, pack.cos, pack.sin)
        key_TGD = Rotate.apply(key_TGD, pack.cos, pack.sin)
        if pack.key_rows is not None:
            # One gather for both halves the number of collectives.
            both = _GatherTokens.apply(torch.cat([key_TGD, value_TGD], -1), self.cp_group)
            key_TGD, value_TGD = both.index_select(0, pack.key_rows).chunk(2, -1)
        return attend(query_TND, key_TGD, value_TGD, pack, self.scale).flatten(1)


class _GatherTokens(torch.autograd.Function):
    """All context-parallel ranks' tokens, rank after rank; gradients are summed back."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.shape = group, local.shape
        whole = local.new_empty(group.size() * local.size(0), *local.shape[1:])
        dist.all_gather_single(whole, local.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        local = gradients[0].new_empty(ctx.shape)
        dist.reduce_scatter_single(local, gradients[0].contiguous(), group=ctx.group)
        return local, None


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm, its weight marked so that Megatron reduces it under sequence parallelism.

    On a CPU torch has no fused kernel, and its composed one takes twice the time of ours.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.dtype is torch.float32:
            return _CpuRmsNorm.apply(x, self.weight, self.eps)
        return super().forward(x)


class _CpuRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.size(-1))
        inverse = mean_square.add_(eps).rsqrt_()
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, inverse, weight = ctx.saved_tensors
        upstream = gradients[0]
        weight_grad = (upstream * unit).reshape(-1, unit.size(-1)).sum(0)
        scaled = upstream * weight
        along = (scaled * unit).mean(-1, keepdim=True)
        return scaled.sub_(unit * along).mul_(inverse), weight_grad, None


def layer_spec(config: TransformerConfig) -> ModuleSpec:
    """Megatron's own layer for this config, with our attention and norms."""
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    layer: Any = spec.submodules
    attention: Any = layer.self_attention.submodules
    attention.core_attention = PackedAttention
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return spec
