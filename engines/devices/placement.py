"""Which GPUs of a host each unit gets: ranks count up from the first, servers down from the last.

So the two kinds share devices only where there are too few for both. A host without GPUs shares out
the cores of its CPU, which needs no numbers.
"""

from __future__ import annotations


def rank_device(index: int, num_gpus: int) -> int | None:
    """The GPU of the rank with this number; None without GPUs. Example: rank_device(1, 4) -> 1"""
    return index % num_gpus if num_gpus else None


def first_server_device(index: int, tp: int, num_gpus: int) -> int:
    """The first of a server's `tp` neighbouring GPUs. Example: first_server_device(0, 2, 8) -> 6"""
    blocks = max(num_gpus // tp, 1)
    return max(num_gpus - tp * (index % blocks + 1), 0)
