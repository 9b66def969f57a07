"""Our own core attention and norm, as parts of Megatron's plain layer spec.

They run wherever torch's attention and rms_norm do, so CPU and GPU share parameter names, maps and
checkpoints. Axes: T tokens of this rank's pack, N heads, G KV heads, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.parallel_state import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.transformer.utils import (
    is_layer_window_attention,
    make_sharded_tensors_for_checkpoint,
)
from torch import Tensor

from engines.families.common.tensors import Parameters
from engines.megatron import device
from engines.megatron.adapters import Column, Row
from engines.megatron.attention import attend
from engines.megatron.parallel import Layout
from engines.megatron.rotary import Rotate
from engines.megatron.stacked_experts import StackedExperts
from engines.megatron.train.pack import Pack
from engines.megatron.train.routes import Replay


class PackedAttention(MegatronModule):
    """Causal attention of a pack's sequences, each over itself only, in some layers within a window
    and with rotary angles of their own."""

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
        rotates: bool = True,
        **_: Any,
    ) -> None:
        """`rotates`: queries and keys are not rotated yet."""
        super().__init__(config=config)
        self.rotates = rotates
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(["cp"])
        self.cp_group: dist.ProcessGroup = groups.cp
        head_size: Any = k_channels or config.kv_channels
        self.scale = softmax_scale or 1.0 / math.sqrt(head_size)
        size, layers = config.window_size, config.window_attn_skip_freq
        windowed = is_layer_window_attention(size, layers or 0, layer_number)
        self.window = size[0] + 1 if size and windowed else None
        self.sinks: Tensor | None = None

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
        if self.rotates:
            in_pairs = self.config.rotary_interleaved
            cos, sin = pack.window_angles if self.window else pack.angles
            query_TND = Rotate.apply(query_TND, cos, sin, in_pairs)
            key_TGD = Rotate.apply(key_TGD, cos, sin, in_pairs)
        if pack.key_rows is not None:
            # One gather for both halves the number of collectives.
            both = _GatherTokens.apply(torch.cat([key_TGD, value_TGD], -1), self.cp_group)
            key_TGD, value_TGD = both.index_select(0, pack.key_rows).chunk(2, -1)
        return attend(
            query_TND, key_TGD, value_TGD, pack, self.scale, self.window, self.sinks
        ).flatten(1)


class SinkAttention(PackedAttention):
    """Attention of which each head can also look at nothing, by a score that it learns."""

    def __init__(self, config: TransformerConfig, *given: Any, **named: Any) -> None:
        super().__init__(config, *given, **named)
        del self.sinks
        ranks = get_tensor_model_parallel_world_size()
        own = torch.zeros(config.num_attention_heads // ranks, dtype=config.params_dtype)
        self.sinks = torch.nn.Parameter(own)
        set_tensor_model_parallel_attributes(self.sinks, is_parallel=True, dim=0, stride=1)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> Any:
        """Return what a checkpoint holds of it."""
        return make_sharded_tensors_for_checkpoint(
            {"sinks": self.sinks}, prefix, {"sinks": 0}, sharded_offsets
        )


class _GatherTokens(torch.autograd.Function):
    """All context-parallel ranks' tokens, rank after rank; gradients are summed back."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:  # pyrefly: ignore[bad-override]
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

    A zero-centred weight is that much more than 1; the sum is in fp32, which has room for it. On a
    CPU torch has no fused kernel, and its composed one takes twice the time of ours.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # pyrefly: ignore[missing-attribute]
        self.is_zero_centered = config.layernorm_zero_centered_gamma

    def forward(self, x: Tensor) -> Tensor:
        if self.is_zero_centered:
            return self._normed(x.float(), 1.0 + self.weight.float()).to(x.dtype)
        return self._normed(x, self.weight)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.dtype is torch.float32:
            return _CpuRmsNorm.apply(x, weight, self.eps)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class _CpuRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:  # pyrefly: ignore[bad-override]
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


class ExpertRouter(TopKRouter):
    """Megatron's router, without the compiler that it counts an expert's tokens with.

    Its own losses are added to the summed loss of a step, which is later divided by that step's
    units. Each is the mean over tokens, in every layout: Megatron's own takes every token for a
    unit, and adds less where ranks share a micro-batch's tokens.
    """

    units_per_token: float = 1.0
    """of the step's whole batch"""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.sent: Tensor | None = None
        """tokens that each expert got in passes with a gradient, on this rank"""
        self.replay = Replay()
        self.router_replay = self.replay

    def _apply_aux_loss(
        self,
        probs: Tensor,
        scores_for_aux_loss: Tensor,
        routing_map: Tensor,
        with_padding_mask: bool = False,
    ) -> Tensor:
        """That of the Switch Transformer: experts x the sum over them of (share of the tokens'
        places that it got) x (its mean score); 1 where all are even."""
        counts = routing_map.sum(0).float()
        dist.all_reduce(counts, group=self.tp_cp_group)
        shares = counts / counts.sum()
        summed = (shares * scores_for_aux_loss.sum(0)).sum() * len(counts)
        coefficient: Any = self.config.moe_aux_loss_coeff
        return self._with_loss(probs, coefficient * summed)

    def apply_z_loss(self, logits: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The mean square of the logits' log-sum-exp, which keeps them small."""
        coefficient = self.config.moe_z_loss_coeff
        if not coefficient or not self.training or not torch.is_grad_enabled():
            return logits
        return self._with_loss(logits, coefficient * logits.logsumexp(-1).square().sum())

    def _with_loss(self, passed: Tensor, summed: Tensor) -> Tensor:
        """`passed` as it is; the backward pass also goes through this sum over tokens."""
        return MoEAuxLossAutoScaler.apply(passed, summed * self.units_per_token)

    def _apply_expert_bias(self, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:  # pyrefly: ignore[bad-override]
        """Count the tokens of each expert where the weights learn from them."""
        if not torch.is_grad_enabled():
            return
        counts = routing_map.sum(0)
        self.sent = counts if self.sent is None else self.sent + counts
        if self.enable_expert_bias:
            balance: Any = self.local_tokens_per_expert
            balance += counts

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """A model that is made bf16 keeps in fp32 what a router has beside its weights: the last
        bits of a bias decide between experts that are almost as good, and bf16 counts to 256."""
        kept = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, own in kept.items():
            self._buffers[name] = own.to(self._buffers[name].device)  # pyrefly: ignore[missing-attribute]
        return self


class ExpertLayer(TransformerLayer):
    """Megatron's layer, whose router hears of its pack. The backward pass may compute it again,
    between layers of another pack."""

    def forward(self, *given: Any, packed_seq_params: Pack, **named: Any) -> Any:  # pyrefly: ignore[bad-override]
        experts: Any = self.mlp
        experts.router.replay.pack = packed_seq_params.routes
        return super().forward(*given, packed_seq_params=packed_seq_params, **named)


@dataclass(frozen=True, slots=True)
class Routers:
    """The routers of this rank's layers: of a dense model none, and of others as many as fall to
    it."""

    each: tuple[ExpertRouter, ...]
    num_experts: int

    @classmethod
    def of(cls, network: torch.nn.Module, config: TransformerConfig) -> Routers:
        each = tuple(m for m in network.modules() if isinstance(m, ExpertRouter))
        for number, router in enumerate(each):
            router.replay.layer = number
        return cls(each, config.num_moe_experts or 0)

    def begin(self, units: float, tokens: float) -> None:
        """A step begins whose batch has so many of both, on all ranks together."""
        for router in self.each:
            router.units_per_token = units / tokens

    def load(self, layout: Layout) -> dict[str, float]:
        """Return how evenly experts were used since the last call; all ranks take part."""
        if not self.num_experts:
            return {}
        sent_LE = torch.zeros(len(self.each), self.num_experts, device=device.device())
        for sent_E, router in zip(sent_LE, self.each, strict=True):
            if router.sent is not None:
                sent_E += router.sent
            router.sent = None
        dist.all_reduce(sent_LE, group=layout.stage_group)
        found = sent_LE.new_zeros(2)
        if self.each:
            found[0] = (sent_LE / sent_LE.mean(-1, keepdim=True).clamp_min(1e-9)).max()
            found[1] = (sent_LE == 0).sum(-1).max()
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        highest, idle = found.tolist()
        return {"expert_load_max": highest, "experts_idle_max": idle}


class NormedOutput(Row):
    """The last product of an attention or a feed-forward, and a norm of what it gives."""

    def __init__(self, *given: Any, config: TransformerConfig, **named: Any) -> None:
        super().__init__(*given, config=config, **named)
        self.norm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, input_: Tensor) -> Any:
        output, bias = super().forward(input_)
        return self.norm(output), bias


class NormOfAllHeads(RMSNorm):
    """One norm of a token's heads together. Tensor-parallel ranks have some of the heads each, and
    all of the weight."""

    def __init__(
        self, config: TransformerConfig, hidden_size: int, heads: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__(config, heads * hidden_size, eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., N, D]."""
        wide = x.flatten(-2).float()
        squares = reduce_from_tensor_model_parallel_region(wide.square().sum(-1, keepdim=True))
        # Each rank's numbers depend on all ranks' squares, so their gradients are summed as well.
        squares = copy_to_tensor_model_parallel_region(squares)
        unit = wide * torch.rsqrt(squares / self.weight.numel() + (self.eps or 0.0))
        ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        return (unit * self.weight.chunk(ranks)[rank]).to(x.dtype).view_as(x)


def _norm_of(heads: int | None) -> ModuleSpec:
    return ModuleSpec(NormOfAllHeads, params={"heads": heads})


def layer_spec(
    config: TransformerConfig, parameters: Parameters, *, has_experts: bool = False
) -> ModuleSpec:
    """Megatron's own layer with our attention, and the norms that are among its `parameters`."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if has_experts else None,
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
    )
    layer: Any = spec.submodules
    if has_experts:
        spec.module = ExpertLayer
        layer.mlp.submodules.router = ExpertRouter
        parts = layer.mlp.submodules
        feed_forwards = [parts.experts.submodules, parts.shared_experts.submodules]
        if "mlp.experts.gate_up_proj" in parameters:
            parts.experts, feed_forwards = ModuleSpec(StackedExperts), feed_forwards[1:]
    else:
        feed_forwards = [layer.mlp.submodules]
    for feed_forward in feed_forwards:
        feed_forward.linear_fc1, feed_forward.linear_fc2 = Column, Row
    attention: Any = layer.self_attention.submodules
    has_sinks = "self_attention.core_attention.sinks" in parameters
    attention.core_attention = SinkAttention if has_sinks else PackedAttention
    attention.linear_qkv, attention.linear_proj = Column, Row
    for name in ("input_layernorm", "pre_mlp_layernorm"):
        setattr(layer, name, RMSNorm if f"{name}.weight" in parameters else IdentityOp)
    if "self_attention.linear_proj.norm.weight" in parameters:
        attention.linear_proj = NormedOutput
    if "mlp.linear_fc2.norm.weight" in parameters:
        layer.mlp.submodules.linear_fc2 = NormedOutput
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
        of_queries = parameters.get("self_attention.q_layernorm.weight")
        if of_queries is not None and of_queries[0].rows == ("queries",):
            attention.q_layernorm = _norm_of(config.num_attention_heads)
            attention.k_layernorm = _norm_of(config.num_query_groups)
    return spec
