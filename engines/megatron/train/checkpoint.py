"""Saving and loading a training state that any layout can continue from.

Megatron's dist_checkpointing stores parameters and optimizer state by their global shape, so a
checkpoint of TP 2 loads into PP 2. All ranks write: each its own part of the optimizer's state, and
of the weights, which data-parallel ranks have alike, a part that Megatron deals out to it. Ranks
wait for a copy in host memory only; a thread of each writes the copy. Random states belong to a
layout: another one starts them from the seed and the step instead.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, is_main_replica
from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

from engines.megatron import device
from engines.megatron.adapters import PARAMETERS
from engines.megatron.parallel import Layout
from engines.megatron.train.optimizer import OptimizerShards, optimizer_parts
from infra.errors import InputError


class CheckpointBeingWritten:
    """A copy of this rank's part, and the thread that writes it. All ranks call every method."""

    def __init__(self, request: AsyncRequest) -> None:
        self._finalize = request.finalize_fns
        write, arguments = request.async_fn, list(request.async_fn_args)
        if request.preload_fn is not None:
            arguments[1] = request.preload_fn()
        # A rank that has nothing to write has no function for it.
        self._thread = threading.Thread(
            name="checkpoint", daemon=True, target=write, args=arguments if write else ()
        )
        self._thread.start()

    def finish(self, *, wait: bool) -> bool:
        """Return whether all ranks have written; the checkpoint is complete then. `wait`: it will
        be.
        """
        if wait:
            self._thread.join()
        with device.cuda_means_cpu():
            writing = torch.tensor(int(self._thread.is_alive()), device=device.device())
            dist.all_reduce(writing)
            if writing.item():
                return False
            for finalize in self._finalize:
                finalize()
        return True

    def close(self) -> None:
        """Return when nothing is written any more."""
        self._thread.join()


class _CopyFirst(TorchDistSaveShardedStrategy):
    """Megatron's writer copies what is on a GPU, and on a CPU only views: here the rest as well,
    so that training may change it while it is written."""

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> AsyncRequest:
        for value in nested_values(sharded_state_dict):
            is_here = isinstance(value, ShardedTensor) and is_main_replica(value.replica_id)
            if is_here and value.data is not None and value.data.is_cpu:
                value.data = value.data.detach().clone()
        return super().async_save(sharded_state_dict, checkpoint_dir)


@dataclass(slots=True)
class TrainingState:
    """What a checkpoint contains, except the step count. Of a model with adapters these alone: the
    rest stays as it was loaded."""

    model: DistributedDataParallel
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    layout: Layout
    seed: int
    has_adapters: bool = False
    _strategy: FullyParallelSaveStrategyWrapper | None = field(default=None, init=False)

    def begin_save(self, folder: Path, steps_done: int) -> CheckpointBeingWritten:
        """Copy what has to be written into `folder`, which is made, and start to write it."""
        folder.mkdir(parents=True, exist_ok=True)
        model = self._model()
        state = {
            "model": model,
            "shards": OptimizerShards(self.optimizer, model).tensors,
            "optimizer": [_groups_of(part) for part in optimizer_parts(self.optimizer)],
            "scheduler": self.scheduler.state_dict(),
            "steps_done": steps_done,
            "layout": self.layout.parallel.model_dump(exclude_none=True),
            "rng": self._rng(_random_states()),
        }
        is_first = self._strategy is None
        group: Any = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self._strategy = self._strategy or FullyParallelSaveStrategyWrapper(
            _CopyFirst("torch_dist", 1, thread_count=1, cached_metadata=True),
            group,
            do_cache_distribution=True,
        )
        with device.cuda_means_cpu(), torch.no_grad():
            request: Any = dist_checkpointing.save(
                state,
                str(folder),
                self._strategy,
                # What a rank holds is the same in every save.
                validate_access_integrity=is_first,
                async_sharded_save=True,
            )
            return CheckpointBeingWritten(request)

    def load(self, folder: Path) -> int:
        """Continue from `folder`; returns its step count. InputError if it is no checkpoint."""
        if not dist_checkpointing.check_is_distributed_checkpoint(str(folder)):
            raise InputError(f"{folder} holds no training checkpoint")
        common: Any = dist_checkpointing.load_common_state_dict(str(folder))
        model = self._model()
        steps_done: int = common["steps_done"]
        self._load_groups(common["optimizer"], steps_done)
        shards = OptimizerShards(self.optimizer, model)
        wanted: dict[str, Any] = {"model": model, "shards": shards.tensors}
        is_same_layout = common["layout"] == self.layout.parallel.model_dump(exclude_none=True)
        if is_same_layout:
            wanted["rng"] = self._rng(None)
        with device.cuda_means_cpu(), torch.no_grad():
            strategy = get_default_load_sharded_strategy(str(folder))
            state: Any = dist_checkpointing.load(wanted, str(folder), strategy)
            self.model.load_state_dict(state["model"], strict=not self.has_adapters)
            shards.loaded()
        self.scheduler.load_state_dict(common["scheduler"])
        if is_same_layout:
            _set_random_states(state["rng"])
        else:
            seed_all(self.seed + steps_done)
        return steps_done

    def _load_groups(self, saved: list[Any], steps_done: int) -> None:
        """What the optimizer says of groups of parameters. With expert parallelism experts have an
        optimizer of their own; where the checkpoint is of ranks that share them out in another way,
        each keeps its own groups, and the scheduler sets the rest. All have made as many steps: the
        rank that wrote what it says of them counts none where it has no expert itself."""
        parts = optimizer_parts(self.optimizer)
        if len(parts) != len(saved):
            saved = [part.state_dict() for part in parts]
        for part, state in zip(parts, saved, strict=True):
            for group in state["optimizer"]["param_groups"]:
                group["step"] = steps_done
            part.load_state_dict(state)

    def _model(self) -> dict[str, Any]:
        module: Any = self.model.module
        with device.cuda_means_cpu():
            # Megatron writes its process groups into the metadata: each call needs its own.
            state = module.sharded_state_dict(metadata={})
        if self.has_adapters:
            return {name: part for name, part in state.items() if PARAMETERS in name}
        return state

    def _rng(self, states: Any) -> ShardedObject:
        """One entry for each rank: every rank's random states are its own."""
        return ShardedObject("rng", states, (self.layout.world,), (self.layout.rank,))


def _groups_of(part: Any) -> dict[str, Any]:
    """Return what an optimizer says of its groups of parameters. One that is offloaded names the
    classes that it consists of, too, and a checkpoint with classes is not read."""
    state: dict[str, Any] = part.state_dict()
    for group in state["optimizer"]["param_groups"]:
        for name in [name for name, value in group.items() if isinstance(value, type)]:
            del group[name]
    return state


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
