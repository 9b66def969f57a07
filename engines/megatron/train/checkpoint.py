"""Saving and loading a training state that any layout can continue from.

Megatron's dist_checkpointing stores parameters and optimizer state by their global shape, so a
checkpoint of TP 2 loads into PP 2. Random states belong to a layout: another one starts them from
the seed and the step instead.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

from engines.megatron import device
from engines.megatron.parallel import Layout
from infra.errors import InputError

FULLY_RESHARDABLE: Mapping[str, Any] = MappingProxyType(
    {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What a checkpoint contains, except the step count."""

    model: DistributedDataParallel
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    layout: Layout
    seed: int

    def save(self, folder: Path, steps_done: int) -> None:
        """Write into `folder`, which is made; all ranks return when it is complete."""
        folder.mkdir(parents=True, exist_ok=True)
        state = self._sharded(is_loading=False) | {
            "scheduler": self.scheduler.state_dict(),
            "steps_done": steps_done,
            "layout": self.layout.parallel.model_dump(),
            "rng": self._rng(_random_states()),
        }
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
        with device.cuda_means_cpu():
            dist_checkpointing.save(state, str(folder), strategy)

    def load(self, folder: Path) -> int:
        """Continue from `folder`; returns its step count. InputError if it is no checkpoint."""
        if not dist_checkpointing.check_is_distributed_checkpoint(str(folder)):
            raise InputError(f"{folder} holds no training checkpoint")
        common: Any = dist_checkpointing.load_common_state_dict(str(folder))
        wanted = self._sharded(is_loading=True)
        is_same_layout = common["layout"] == self.layout.parallel.model_dump()
        if is_same_layout:
            wanted["rng"] = self._rng(None)
        with device.cuda_means_cpu(), torch.no_grad():
            strategy = get_default_load_sharded_strategy(str(folder))
            state: Any = dist_checkpointing.load(wanted, str(folder), strategy)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(common["scheduler"])
        steps_done: int = common["steps_done"]
        if is_same_layout:
            _set_random_states(state["rng"])
        else:
            seed_all(self.seed + steps_done)
        return steps_done

    def _sharded(self, *, is_loading: bool) -> dict[str, Any]:
        # Megatron writes its process groups into this dict: each call needs its own.
        metadata = dict(FULLY_RESHARDABLE)
        with device.cuda_means_cpu():
            module: Any = self.model.module
            model = module.sharded_state_dict(metadata=metadata)
            optimizer = self.optimizer.sharded_state_dict(
                model, is_loading=is_loading, metadata=metadata
            )
        return {"model": model, "optimizer": optimizer}

    def _rng(self, states: Any) -> ShardedObject:
        """One entry for each rank: every rank's random states are its own."""
        return ShardedObject("rng", states, (self.layout.world,), (self.layout.rank,))


def seed_all(seed: int) -> None:
    """Start every random state that code of a rank can draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


def _random_states() -> dict[str, Any]:
    tracker: Any = get_cuda_rng_tracker()
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
        "megatron": dict(tracker.get_states()),
    }
    if device.has_cuda():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    tracker: Any = get_cuda_rng_tracker()
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    tracker.set_states(states["megatron"])
    if device.has_cuda():
        torch.cuda.set_rng_state(states["cuda"])
