"""gpt-oss's experts: all of a layer in four tensors, as its HF folder has them.

Gate and up projections take turns in the columns of one matrix. Both are clamped; the gate goes
through a quick GELU, and the other has 1 added.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

_ALPHA = 1.702


class StackedExperts(MegatronModule):
    """The experts of this rank."""

    def __init__(
        self,
        num_local_experts: int,
        config: TransformerConfig,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.groups = pg_collection
        hidden, ffn = config.hidden_size, config.moe_ffn_hidden_size or 0
        self.gate_up_proj = self._parameter(num_local_experts, hidden, 2 * ffn)
        self.gate_up_proj_bias = self._parameter(num_local_experts, 2 * ffn)
        self.down_proj = self._parameter(num_local_experts, ffn, hidden)
        self.down_proj_bias = self._parameter(num_local_experts, hidden)

    def _parameter(self, *size: int) -> torch.nn.Parameter:
        made: Any = torch.nn.Parameter(torch.zeros(size, dtype=self.config.params_dtype))
        # Megatron sums its gradient over the ranks that have the same experts.
        made.allreduce = self.config.expert_model_parallel_size == 1
        # No other rank's gradient norm counts it.
        set_tensor_model_parallel_attributes(made, is_parallel=True, dim=0, stride=1)
        return made

    def forward(
        self, tokens: Tensor, tokens_per_expert: Tensor, probs: Tensor
    ) -> tuple[Tensor, None]:
        """Tokens are in the order of their experts."""
        counts = tokens_per_expert.tolist()
        found = [
            self._expert(number, own, weight)
            for number, (own, weight) in enumerate(
                zip(tokens.split(counts), probs.split(counts), strict=True)
            )
        ]
        return torch.cat(found), None

    def _expert(self, number: int, tokens: Tensor, probs: Tensor) -> Tensor:
        most: Any = self.config.activation_func_clamp_value
        both = torch.addmm(self.gate_up_proj_bias[number], tokens, self.gate_up_proj[number])
        gate, up = both[..., ::2].clamp(max=most), both[..., 1::2].clamp(-most, most)
        passed = (up + 1) * gate * torch.sigmoid(_ALPHA * gate)
        output = torch.addmm(self.down_proj_bias[number], passed, self.down_proj[number])
        return (output * probs[:, None]).to(tokens.dtype)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> Any:
        """Return what a checkpoint holds of them; expert-parallel ranks share out the experts."""
        ep, axes = self.groups.ep, len(sharded_offsets)
        return {
            f"{prefix}{name}": ShardedTensor.from_rank_offsets(
                f"{prefix}{name}",
                parameter,
                *sharded_offsets,
                (axes, ep.rank(), ep.size()),
                replica_id=(0, 0, self.groups.expt_dp.rank()),
                prepend_axis_num=axes,
            )
            for name, parameter in self.named_parameters()
        }
