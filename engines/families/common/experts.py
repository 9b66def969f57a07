"""Mixtures of experts: layers in which every token passes a few of many feed-forwards. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.families.common.model_config import flag, positive, positive_int
from engines.families.common.tensors import ROUTED, HfTensor
from infra.errors import InputError

ROUTER = {"mlp.router.weight": (HfTensor("mlp.gate.weight", ROUTED, "hidden"),)}
EXPERT_BIAS = {"mlp.router.expert_bias": (HfTensor("mlp.gate.e_score_correction_bias", ROUTED),)}
SHARED_EXPERTS = {
    "mlp.shared_experts.linear_fc1.weight": (
        HfTensor("mlp.shared_experts.gate_proj.weight", ("shared_ffn",), "hidden"),
        HfTensor("mlp.shared_experts.up_proj.weight", ("shared_ffn",), "hidden"),
    ),
    "mlp.shared_experts.linear_fc2.weight": (
        HfTensor("mlp.shared_experts.down_proj.weight", ("hidden",), "shared_ffn"),
    ),
}
EXPERT = {
    "linear_fc1.weight": (
        HfTensor("mlp.experts.{}.gate_proj.weight", ("expert_ffn",), "hidden"),
        HfTensor("mlp.experts.{}.up_proj.weight", ("expert_ffn",), "hidden"),
    ),
    "linear_fc2.weight": (HfTensor("mlp.experts.{}.down_proj.weight", ("hidden",), "expert_ffn"),),
}


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of a model, alike in every layer that has some."""

    num_experts: int
    per_token: int
    """how many of them one token passes"""
    ffn: int
    """feed-forward width of one expert"""
    dense_layers: frozenset[int] = frozenset()
    """numbers of the layers without experts"""
    shared_ffn: int = 0
    """feed-forward width of the shared experts, which every token passes; 0: there are none"""

    def is_routed(self, layer: int) -> bool:
        """Return whether this layer has experts."""
        return layer not in self.dense_layers

    @property
    def axes(self) -> dict[str, int]:
        return {
            "experts": self.num_experts,
            "expert_ffn": self.ffn,
            "gate_and_up": 2 * self.ffn,
            "shared_ffn": self.shared_ffn,
        }


def read_mixture(
    config: Mapping[str, Any],
    num_experts: int,
    dense_layers: frozenset[int] = frozenset(),
    shared_ffn: int = 0,
    *,
    is_normed: bool = False,
) -> Mixture:
    """From a config.json that names the two other sizes as most do. `is_normed`: whether the
    weights of a token's experts are a softmax among themselves. Raises InputError."""
    if flag(config, "tie_word_embeddings"):
        # Its classes make an output layer all the same, and leave it as the memory was.
        raise InputError(
            "config.json: tie_word_embeddings is true: SGLang reads no mixture of experts whose"
            " output layer is the embedding; store it as lm_head.weight too, and set false"
        )
    per_token = positive_int(config, "num_experts_per_tok")
    if per_token > num_experts:
        raise InputError(
            f"config.json: num_experts_per_tok ({per_token}) is more than the experts there are"
            f" ({num_experts})"
        )
    if is_normed and per_token == 1:
        raise InputError(
            "config.json: num_experts_per_tok 1 with weights that sum to 1 gives every expert the"
            " weight 1, from which a router learns nothing; where config.json has norm_topk_prob,"
            " set it to false"
        )
    layers = positive_int(config, "num_hidden_layers")
    if len(dense_layers) >= layers:
        raise InputError(
            "config.json: no layer has experts; give a dense family's model_type, or let a layer"
            " have some"
        )
    ffn = positive_int(config, "moe_intermediate_size")
    return Mixture(num_experts, per_token, ffn, dense_layers, shared_ffn)


def sigmoid_routing(config: Mapping[str, Any], mixture: Mixture) -> dict[str, Any]:
    """Megatron's fields of a router by sigmoids with a bias, which chooses among groups of experts
    where there are several. Raises InputError."""
    if (config.get("norm_topk_prob", True) is not True) == (mixture.per_token > 1):
        raise InputError(
            f"config.json: norm_topk_prob {config.get('norm_topk_prob', True)} with"
            f" num_experts_per_tok {mixture.per_token} is not supported: the weights of several"
            " experts sum to 1, and that of a single one is its sigmoid"
        )
    groups, chosen = positive_int(config, "n_group", 1), positive_int(config, "topk_group", 1)
    if mixture.num_experts % groups or chosen > groups:
        raise InputError(
            f"config.json: n_group ({groups}) must divide the experts ({mixture.num_experts}), and"
            f" topk_group ({chosen}) must not be above it"
        )
    if groups > 1 and (
        mixture.per_token // chosen != 2
        or mixture.num_experts // groups * chosen < mixture.per_token
    ):
        raise InputError(
            f"config.json: num_experts_per_tok ({mixture.per_token}) must be twice topk_group"
            f" ({chosen}), or one more, and not above the experts of so many groups: Megatron-core"
            " ranks a group by its best num_experts_per_tok // topk_group experts, and transformers"
            " and SGLang by its best two"
        )
    fields: dict[str, Any] = {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_topk_scaling_factor": positive(config, "routed_scaling_factor", 1.0),
    }
    if groups > 1:
        fields |= {"moe_router_num_groups": groups, "moe_router_group_topk": chosen}
    return fields
