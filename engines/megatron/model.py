"""Building a model: a GPTModel from layer specs whose head runs only on the rows that count."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from megatron.core.activations import quick_gelu
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.divergences import top_logprobs
from engines.algorithms.linear_logprobs import among_kept, linear_logprobs
from engines.families.common.family import ModelShape
from engines.families.common.model_config import Rope
from engines.megatron import device, kernels
from engines.megatron.delta_net import GatedAttention, PackedDeltaNet
from engines.megatron.latent_attention import LatentAttention
from engines.megatron.layers import RMSNorm, layer_spec
from engines.megatron.options import AUX_LOSS
from engines.megatron.options_table import filled
from engines.megatron.parallel import Layout
from engines.megatron.rotary import rotary_factors
from engines.megatron.train.pack import Angles, Pack

if TYPE_CHECKING:
    from engines.megatron.rl.teachers import TopTokens

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_ACTIVATIONS: Mapping[str, Any] = {
    "silu": F.silu,
    "quick_gelu": quick_gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
}


class PackedModel(GPTModel):
    """The trunk: a pack's tokens in, hidden states of its trained rows out. A head is a subclass.

    Rotary angles are computed once per pack and applied by our attention, not once per layer.
    """

    def __init__(self, shape: ModelShape, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, position_embedding_type="none", **kwargs)
        self.speeds, self.rope_scale = _speeds(shape.rope, shape), shape.rope.scale
        self.rotary_dim = shape.rotary_dim
        self.window_speeds = _speeds(shape.window.rope, shape) if shape.window else None
        self.window_scale = shape.window.rope.scale if shape.window else 1.0
        # Rounded as transformers rounds it.
        scale = torch.tensor(shape.embedding_scale, dtype=self.config.params_dtype)
        self.embedding_scale = scale.item()

    def _preprocess(self, *args: Any, **kwargs: Any) -> Any:
        embedded, *others = super()._preprocess(*args, **kwargs)
        if self.pre_process and self.embedding_scale != 1.0:
            embedded = embedded * self.embedding_scale
        return embedded, *others

    def hidden_states(self, *args: Any, packed_seq_params: Pack, **kwargs: Any) -> Tensor:
        """[R, H] of the pack's trained rows on the last stage; [T, 1, H] on other stages."""
        pack = packed_seq_params
        pack.angles = self._angles(pack, self.speeds, self.rope_scale)
        if self.window_speeds is not None:
            pack.window_angles = self._angles(pack, self.window_speeds, self.window_scale)
        return super().forward(*args, packed_seq_params=pack, **kwargs)

    def _angles(self, pack: Pack, speeds: Tensor, scale: float = 1.0) -> Angles:
        in_pairs, width = self.config.rotary_interleaved, self.rotary_dim
        return rotary_factors(pack.positions, speeds, width, scale=scale, in_pairs=in_pairs)

    def _postprocess(  # pyrefly: ignore[bad-override]
        self, hidden_states: Tensor, *_: Any, packed_seq_params: Pack, **__: Any
    ) -> Tensor:
        """[R, H] hidden states of the trained rows on the last stage; all of them elsewhere."""
        if not self.post_process:
            return hidden_states
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=False, group=self.pg_collection.tp
            )
        return hidden_states.squeeze(1).index_select(0, packed_seq_params.rows)


def _speeds(rope: Rope, shape: ModelShape) -> Tensor:
    return torch.tensor(rope.inverse_frequencies(shape.rotary_dim), device=device.device())


def _by_row(temperature: float | NDArray[np.float32], pack: Pack, like: Tensor) -> float | Tensor:
    if isinstance(temperature, np.ndarray):
        return torch.from_numpy(temperature[pack.sequence_of_row]).to(like.device)
    return temperature


class PolicyModel(PackedModel):
    """The output layer on a pack's trained rows only, fused with their logprobs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.post_process and self.output_layer.sequence_parallel:
            # The rows are chosen from all tokens, so we gather before the output layer: it then
            # sees whole inputs and must sum the input gradient over tensor-parallel ranks itself.
            self.output_layer.sequence_parallel = False
            self.output_layer.allreduce_dgrad = True

    def forward(  # pyrefly: ignore[bad-override]
        self,
        *args: Any,
        packed_seq_params: Pack,
        temperature: float | NDArray[np.float32] | None = None,
        has_entropy_loss: bool = False,
        compared: TopTokens | None = None,
        num_top: int = 0,
        **kwargs: Any,
    ) -> Tensor:
        """Return on the last stage [2, R]: logprobs of the pack's labels at this temperature (or
        that of each sequence), then entropies, with a gradient where the loss has them, both among
        the tokens that were kept; without a temperature the logits, [R, V / tp]. [T, 1, H] on other
        stages.

        `compared` tokens add a row of logprobs for each, [2 + K, R]. With `num_top`, in place of
        entropies there is what `top_logprobs` gives, [2 + 2K, R].
        """
        pack = packed_seq_params
        hidden = self.hidden_states(*args, packed_seq_params=pack, **kwargs)
        if not self.post_process:
            return hidden
        tied = self.share_embeddings_and_output_weights
        weight: Any = self.shared_embedding_or_output_weight() if tied else self.output_layer.weight
        if temperature is None:
            return self.output_layer(hidden, weight=weight)[0]
        labels = pack.labels
        if compared is not None:
            labels = torch.cat([labels[:, None], compared.ids(pack)], 1)
        elif pack.kept is not None:
            labels = pack.kept
        group = self.pg_collection.tp
        logprobs, entropies = linear_logprobs(
            hidden,
            weight,
            labels,
            temperature=_by_row(temperature, pack, hidden),
            group=group,
            fused=kernels.in_use().compiled,
        )
        if pack.kept is not None:
            logprobs, entropies = among_kept(logprobs, pack.kept >= 0)
        # A gradient of zeros would cost as much as one of numbers.
        entropies = entropies if has_entropy_loss else entropies.detach()
        if compared is not None:
            return torch.cat([logprobs[:, :1].t(), entropies[None], logprobs[:, 1:].t()])
        if num_top:
            assert not isinstance(temperature, np.ndarray), "teachers' samples have one temperature"
            top, ids = top_logprobs(hidden, weight, num_top, temperature=temperature, group=group)
            return torch.cat([logprobs[None], top.t(), ids.t()])
        return torch.stack([logprobs, entropies])


class ValueModel(PackedModel):
    """One number a trained row in place of logits: the value of the state its token is chosen in.

    Every tensor-parallel rank holds the whole head and sees whole rows, so nothing is summed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.post_process:
            # Megatron's checkpoint looks for the last stage's head under this name.
            self.output_layer = ValueHead(self.config)  # pyrefly: ignore[bad-assignment]

    def forward(self, *args: Any, packed_seq_params: Pack, **kwargs: Any) -> Tensor:  # pyrefly: ignore[bad-override]
        """[1, R] float32 on the last stage; [T, 1, H] on other stages."""
        hidden = self.hidden_states(*args, packed_seq_params=packed_seq_params, **kwargs)
        return self.output_layer(hidden) if self.post_process else hidden


class ValueHead(torch.nn.Module):
    """[R, H] -> [1, R] in float32, for any dtype of the trunk."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dtype = config.params_dtype
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, hidden_RH: Tensor) -> Tensor:
        return F.linear(hidden_RH.float(), self.weight.float(), self.bias.float()).T


def transformer_config(
    shape: ModelShape, layout: Layout, precision: str, options: Mapping[str, Any]
) -> TransformerConfig:
    """Megatron's config; `options` are the recipe's own fields. InputError if Megatron refuses."""
    dtype = DTYPES[precision]
    parallel = layout.parallel
    fields: dict[str, Any] = {
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_groups,
        "ffn_hidden_size": shape.ffn,
        "kv_channels": shape.head_dim,
        "layernorm_epsilon": shape.norm_eps,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": _ACTIVATIONS[shape.family.activation],
        "add_bias_linear": False,
        **_of_window(shape),
        **_of_experts(shape, options),
        **_of_delta(shape),
        **shape.family.megatron,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "tensor_model_parallel_size": parallel.tp,
        "pipeline_model_parallel_size": parallel.pp,
        "context_parallel_size": parallel.cp,
        "expert_model_parallel_size": parallel.ep,
        "expert_tensor_parallel_size": parallel.expert_tp,
        "sequence_parallel": parallel.tp > 1,
        # Exact global means: Megatron divides the summed gradient by the summed token count.
        "calculate_per_token_loss": True,
        "variable_seq_lengths": True,
        # variable_seq_lengths asks for this dispatcher even where there is no expert.
        "moe_token_dispatcher_type": "alltoall",
        "use_cpu_initialization": not device.has_cuda(),
        # These need kernels of apex or Transformer Engine.
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        # Without dropout and biases there is one addition, and nothing to fuse it with.
        "bias_dropout_fusion": False,
    }
    fields["bias_activation_fusion"] = (
        kernels.in_use().compiled and fields["activation_func"] is F.silu
    )
    return filled(TransformerConfig, options, **fields)


def _of_window(shape: ModelShape) -> dict[str, Any]:
    """Megatron's fields of layers with a sliding window."""
    window = shape.window
    if window is None:
        return {}
    return {
        "window_size": (window.size - 1, 0),
        "window_attn_skip_freq": [int(n in window.layers) for n in range(shape.num_layers)],
    }


def _of_delta(shape: ModelShape) -> dict[str, Any]:
    """Megatron's fields of layers with a gated delta net."""
    delta = shape.delta
    if delta is None:
        return {}
    return {
        "linear_conv_kernel_dim": delta.kernel,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        # So checkpoints store layer by layer, as not all layers have the same parameters.
        "linear_attention_freq": [int(shape.is_delta(n)) for n in range(shape.num_layers)],
    }


def _of_experts(shape: ModelShape, options: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's fields of a mixture of experts; a family adds how it routes."""
    mixture = shape.mixture
    if mixture is None:
        return {}
    return {
        "num_moe_experts": mixture.num_experts,
        "moe_router_topk": mixture.per_token,
        "moe_ffn_hidden_size": mixture.ffn,
        "moe_shared_expert_intermediate_size": mixture.shared_ffn or None,
        "moe_layer_freq": [int(shape.is_routed(layer)) for layer in range(shape.num_layers)],
        "moe_router_load_balancing_type": "aux_loss" if options.get(AUX_LOSS) else "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_dtype": "fp32",
    }


def _layer(shape: ModelShape, config: TransformerConfig, number: int) -> ModuleSpec:
    spec = layer_spec(config, shape.parameters_of(number), has_experts=shape.is_routed(number))
    layer: Any = spec.submodules
    if shape.latent is not None:
        layer.self_attention = ModuleSpec(LatentAttention, params={"shape": shape})
    if shape.is_delta(number):
        layer.self_attention = ModuleSpec(PackedDeltaNet, params={"shape": shape})
    elif shape.has_output_gate:
        layer.self_attention.module = GatedAttention
    return spec


def build_model(shape: ModelShape, config: TransformerConfig, layout: Layout) -> PackedModel:
    """This rank's part of the model, weights still unset, on its device."""
    kind = ValueModel if shape.has_value_head else PolicyModel
    first = get_transformer_layer_offset(config)
    numbers = range(first, first + get_num_layers_to_build(config))
    layers = [_layer(shape, config, number) for number in numbers]
    norm: Any = RMSNorm
    with device.cuda_means_cpu():
        model = kind(
            shape,
            config=config,
            transformer_layer_spec=TransformerBlockSubmodules(layer_specs=layers, layer_norm=norm),
            vocab_size=shape.vocab,
            max_sequence_length=shape.max_positions,
            pre_process=layout.is_first_stage,
            post_process=layout.is_last_stage,
            share_embeddings_and_output_weights=shape.is_tied,
        )
    return model.to(device.device())


def freeze(network: PackedModel, frozen: Sequence[str]) -> None:
    """Parameters with one of these parts in their names."""
    for name, parameter in network.named_parameters():
        if any(part in name for part in frozen):
            parameter.requires_grad = False
