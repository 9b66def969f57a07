"""Gloo processes that share work, whose results a test compares with those of one process."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def over_ranks(share: Callable[[int], T], world: int, folder: Path) -> list[T]:
    """What `share(rank)`, a function of a module, gives on each of `world` ranks of one group."""
    # Forked from a process that has imported torch: an import for each would take most of the time.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([share.__module__])
    on_rank = partial(_on_rank, share, world, f"file://{folder}/rendezvous")
    with ProcessPoolExecutor(world, context) as pool:
        return list(pool.map(on_rank, range(world), timeout=500))


def _on_rank(share: Callable[[int], T], world: int, rendezvous: str, rank: int) -> T:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    try:
        found = share(rank)
        dist.barrier()
    except BaseException:
        # The others would wait for this one: a process that dies ends them all.
        traceback.print_exc()
        os._exit(1)
    dist.destroy_process_group()
    return found
