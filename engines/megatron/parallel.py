"""Joining and leaving the process group and Megatron's parallel state, any number of times."""

from __future__ import annotations

import gc
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from engines.megatron import device
from engines.megatron.spec import Parallel
from engines.rendezvous import store_at
from infra.processes.network import free_ports

# A collective that waits longer than this has lost a peer.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_control: list[dist.ProcessGroup] = []
"""the group of `control_group`, while there is one"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and this rank's coordinates; `parallel` is the same on all ranks."""

    parallel: Parallel
    rank: int
    tp_rank: int
    pp_rank: int
    cp_rank: int
    dp_rank: int
    ep_rank: int = 0
    expert_tp_rank: int = 0

    @property
    def world(self) -> int:
        return self.parallel.world_size

    @property
    def is_first_stage(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp_rank == self.parallel.pp - 1

    @property
    def is_loss_rank(self) -> bool:
        """Return whether this rank's loss values count: its tensor-parallel peers have the same
        values.
        """
        return self.is_last_stage and self.tp_rank == 0

    @property
    def tp_group(self) -> dist.ProcessGroup:
        return _group(parallel_state.get_tensor_model_parallel_group())

    @property
    def pp_group(self) -> dist.ProcessGroup:
        return _group(parallel_state.get_pipeline_model_parallel_group())

    @property
    def cp_group(self) -> dist.ProcessGroup:
        return _group(parallel_state.get_context_parallel_group())

    @property
    def ep_group(self) -> dist.ProcessGroup:
        """The ranks that share out a stage's routed experts."""
        return _group(parallel_state.get_expert_model_parallel_group())

    @property
    def expert_tp_group(self) -> dist.ProcessGroup:
        """The ranks that share each routed expert of this rank."""
        return _group(parallel_state.get_expert_tensor_parallel_group())

    @property
    def expert_group(self) -> dist.ProcessGroup:
        """The ranks that hold all of a stage's routed experts together."""
        return _group(parallel_state.get_expert_tensor_and_model_parallel_group())

    @property
    def stage_group(self) -> dist.ProcessGroup:
        """Return the group of all ranks of this pipeline stage; tensor-parallel ones are next to
        each other."""
        whole = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        return _group(whole)


def _group(group: Any) -> dist.ProcessGroup:
    """Megatron's getters are typed for every use it makes of them."""
    return group


def start_parallel(
    rank: int,
    world: int,
    init_method: str,
    parallel: Parallel,
    listener: socket.socket | None = None,
) -> None:
    """Join the process group at `init_method` (e.g. tcp://127.0.0.1:29500) with this layout.

    Rank 0 listens on that address only, with `listener` if it has one there already.
    Raises ValueError if `world` is not the layout's size.
    """
    if world != parallel.world_size:
        raise ValueError(f"{world} ranks cannot form a layout of {parallel.world_size}: {parallel}")
    device.prepare()
    if device.has_cuda():
        # Not named to torch as this group's device: every later group, such as the one by which
        # weights reach servers, would then be a part of this one's communicator.
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        device.backend(),
        store=store_at(init_method, rank, world, COLLECTIVE_TIMEOUT, listener),
        rank=rank,
        world_size=world,
        timeout=COLLECTIVE_TIMEOUT,
    )
    if world > 1:
        _control.append(_group(dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        context_parallel_size=parallel.cp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.expert_tp,
        # Only the optimizer's CPU-side gathers need extra gloo groups, and we use none of them.
        create_gloo_process_groups=False,
    )


def stop_parallel() -> None:
    """Leave the group, so that the process can join another layout. Safe to call twice."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    _control.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    if device.has_cuda():
        torch.cuda.empty_cache()
        # Pinned blocks too, in which a sleeping rank's bytes and checkpoints waited: an idle rank
        # would hold as much host memory as a model's whole state. Torch before 2.12 cannot.
        empty: Any = getattr(torch.accelerator, "empty_host_cache", None)
        if empty is not None and torch.cuda.is_initialized():
            empty()


def control_group() -> dist.ProcessGroup | None:
    """Return the group of all ranks, for what they tell each other of files and servers; None:
    there is one rank.

    Over the network of their hosts also where there are GPUs: whoever waits long in a collective of
    NCCL is ended by its watchdog, whatever is done meanwhile.
    """
    return _control[0] if _control else None


def wait_for_all(within_s: float) -> None:
    """Wait until every rank came here; seconds by what one of them does while the others wait."""
    if (group := control_group()) is not None:
        dist.monitored_barrier(group, timedelta(seconds=within_s))


def current_layout(parallel: Parallel) -> Layout:
    """This rank's place in the layout that `start_parallel` set up."""
    return Layout(
        parallel=parallel,
        rank=dist.get_rank(),
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
        cp_rank=parallel_state.get_context_parallel_rank(),
        dp_rank=parallel_state.get_data_parallel_rank(),
        ep_rank=parallel_state.get_expert_model_parallel_rank(),
        expert_tp_rank=parallel_state.get_expert_tensor_parallel_rank() or 0,
    )


@contextmanager
def one_rank() -> Generator[None]:
    """Megatron's process groups with this process alone, until the block ends."""
    (port,) = free_ports(1)
    start_parallel(0, 1, f"tcp://127.0.0.1:{port}", Parallel())
    try:
        yield
    finally:
        stop_parallel()
