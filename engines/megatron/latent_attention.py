"""Latent attention (MLA): all heads' keys and values are made from one small vector of each token.

    hidden ─▶ query latent ─▶ queries [unrotated, rotated]
    hidden ─▶ latent ─▶ keys [unrotated, .] and values, by head
           └▶ one rotated key, which all heads share

Every tensor-parallel rank makes the latents of its own tokens whole and the heads that are its own
for all tokens. Megatron-core's layer of plain modules does not sum the shared key's gradient over
these ranks; here it is summed where the key is gathered. Its parameters have the same names.

Axes: T tokens of this rank's pack, N heads on this rank, D numbers of a query or key.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from engines.families.common.family import ModelShape
from engines.megatron.adapters import Column, Row, WholeLinear
from engines.megatron.layers import PackedAttention, RMSNorm
from engines.megatron.rotary import Rotate
from engines.megatron.train.pack import Pack


class LatentAttention(MegatronModule):
    """Takes the place of Megatron's attention in a layer."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        shape: ModelShape,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        assert shape.latent is not None
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
        self.latent, self.head_dim, self.tp_group = shape.latent, shape.head_dim, groups.tp
        axes, eps = shape.axes, shape.norm_eps
        column = {
            "config": config,
            "init_method": config.init_method,
            "bias": False,
            "gather_output": False,
            "tp_group": groups.tp,
        }
        query_rank = shape.latent.query_rank
        if query_rank is None:
            self.linear_q_proj = Column(shape.hidden, axes["queries"], **column)
        else:
            self.linear_q_down_proj = WholeLinear(shape.hidden, query_rank, config)
            self.q_layernorm = RMSNorm(config, query_rank, eps)
            self.linear_q_up_proj = Column(query_rank, axes["queries"], **column)
        self.linear_kv_down_proj = WholeLinear(shape.hidden, axes["latent_and_rotated_key"], config)
        self.kv_layernorm = RMSNorm(config, shape.latent.rank, eps)
        self.linear_kv_up_proj = Column(shape.latent.rank, axes["keys_and_values"], **column)
        self.core_attention = PackedAttention(
            config,
            layer_number,
            *(None, "self"),
            softmax_scale=shape.latent.scale,
            pg_collection=groups,
            rotates=False,
        )
        self.linear_proj = Row(
            axes["values"],
            shape.hidden,
            config=config,
            init_method=config.output_layer_init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
            tp_group=groups.tp,
        )

    def forward(
        self, hidden_states: Tensor, *_: Any, packed_seq_params: Pack, **__: Any
    ) -> tuple[Tensor, None]:
        """[T, 1, H], or this rank's part of the tokens where tensor-parallel ranks share them."""
        pack = packed_seq_params
        query_TND = self._queries(hidden_states, pack)
        key_TND, value_TND = self._keys_and_values(hidden_states, pack)
        # Kernels of attention want heads of one size: zeros beside the values stay zeros.
        padded_TND = F.pad(value_TND, (0, self.head_dim - self.latent.values))
        attended = self._attended(query_TND, key_TND, padded_TND, pack)
        heads = attended.unflatten(-1, (-1, self.head_dim))[..., : self.latent.values]
        output, _bias = self.linear_proj(heads.flatten(-2).unsqueeze(1))
        return output, None

    def _queries(self, hidden: Tensor, pack: Pack) -> Tensor:
        if self.latent.query_rank is None:
            whole, _ = self.linear_q_proj(hidden)
        else:
            whole, _ = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden)))
        query = whole.squeeze(1).unflatten(-1, (-1, self.head_dim))
        unrotated, rotated = query.split(
            [self.head_dim - self.latent.rotated, self.latent.rotated], -1
        )
        return torch.cat([unrotated, Rotate.apply(rotated, *pack.angles, True)], -1)

    def _keys_and_values(self, hidden: Tensor, pack: Pack) -> tuple[Tensor, Tensor]:
        latent, shared = self.linear_kv_down_proj(hidden).split(
            [self.latent.rank, self.latent.rotated], -1
        )
        if self.config.sequence_parallel:
            # Each rank's heads have a gradient for it; the way back sums them.
            shared = tensor_parallel.gather_from_sequence_parallel_region(
                shared, group=self.tp_group
            )
        whole, _ = self.linear_kv_up_proj(self.kv_layernorm(latent))
        unrotated_size = self.head_dim - self.latent.rotated
        by_head = whole.squeeze(1).unflatten(-1, (-1, unrotated_size + self.latent.values))
        unrotated, values = by_head.split([unrotated_size, self.latent.values], -1)
        rotated = Rotate.apply(shared, *pack.angles, True)
        return torch.cat([unrotated, rotated.expand(-1, unrotated.size(1), -1)], -1), values

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, pack: Pack) -> Tensor:
        def attend(*given: Tensor) -> Tensor:
            return self.core_attention(*given, packed_seq_params=pack)

        again = self.config.recompute_granularity == "selective" and self.training
        if again and "core_attn" in (self.config.recompute_modules or ()):
            return tensor_parallel.checkpoint(attend, False, query, key, value)
        return attend(query, key, value)
