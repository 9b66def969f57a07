"""A training loop as a user of Megatron-core writes it, to compare the Trainer with.

Megatron's DDP, distributed optimizer and schedule around the same GPTModel (its layers are ours: a
CPU has no other), with the plainest losses in torch. It takes micro-batches that are laid out
already, sums no statistics and checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron import device
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import load_weights
from engines.megatron.model import build_model, transformer_config
from engines.megatron.parallel import current_layout
from engines.megatron.spec import Parallel
from engines.megatron.train.pack import Pack

Loss: TypeAlias = Callable[[Tensor, "MicroBatch"], Tensor]
"""logits [R, V] and their micro-batch -> summed loss"""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    pack: Pack
    old_logprobs: Tensor | None = None
    """[R] for the policy loss"""
    advantages: Tensor | None = None
    """[R]"""


def cross_entropy(logits_RV: Tensor, batch: MicroBatch) -> Tensor:
    return F.cross_entropy(logits_RV, batch.pack.labels, reduction="sum")


def clipped_policy(logits_RV: Tensor, batch: MicroBatch) -> Tensor:
    """GRPO's token loss, clipped at 0.8 and 1.28."""
    assert batch.old_logprobs is not None
    assert batch.advantages is not None
    logprobs = -F.cross_entropy(logits_RV, batch.pack.labels, reduction="none")
    ratio = (logprobs - batch.old_logprobs).exp()
    bounded = ratio.clamp(0.8, 1.28)
    return -torch.minimum(ratio * batch.advantages, bounded * batch.advantages).sum()


class BareLoop:
    """One model in training, on one rank."""

    def __init__(self, model: Path, lr: float) -> None:
        shape, layout = model_shape(read_config(model)), current_layout(Parallel())
        config = transformer_config(shape, layout, "fp32", {})
        policy = build_model(shape, config, layout)
        weights = HfWeights(model)
        load_weights(policy, shape, layout, weights.read, weights.file_of)
        self._model = DistributedDataParallel(
            config, DistributedDataParallelConfig(use_distributed_optimizer=True), policy
        )
        config.finalize_model_grads_func = finalize_model_grads
        config.no_sync_func = self._model.no_sync
        settings = OptimizerConfig(
            optimizer="adam", lr=lr, min_lr=lr, adam_beta2=0.95, weight_decay=0.0, clip_grad=1.0,
            params_dtype=torch.float32, use_distributed_optimizer=True,
        )  # fmt: skip
        with device.cuda_means_cpu():
            self._optimizer = get_megatron_optimizer(
                settings, [self._model], use_gloo_process_groups=False
            )
        self._run = get_forward_backward_func()

    def step(self, batches: list[MicroBatch], loss: Loss) -> float:
        """One optimizer step over these micro-batches; the mean loss."""

        def forward(batches: Iterator[MicroBatch], model: Any) -> tuple[Tensor, Any]:
            batch = next(batches)
            output = model(
                input_ids=batch.pack.input_ids,
                position_ids=None,
                attention_mask=None,
                packed_seq_params=batch.pack,
            )

            def finish(logits_RV: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
                total = loss(logits_RV, batch)
                units = torch.tensor(len(batch.pack.labels), dtype=torch.int)
                return total, units, {"loss": total.detach()}

            return output, finish

        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        parts = self._run(
            forward_step_func=forward,
            data_iterator=iter(batches),
            model=[self._model],
            num_microbatches=len(batches),
            seq_length=1,
            micro_batch_size=1,
            forward_only=False,
        )
        with device.cuda_means_cpu():
            self._optimizer.step()
        units = sum(len(batch.pack.labels) for batch in batches)
        return float(sum(part["loss"] for part in parts)) / units
