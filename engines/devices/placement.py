"""Which host and which of its GPUs each unit gets: ranks count up from the first GPU of the first
host, servers down from the last of the last.

So the two kinds share devices only where there are too few for both. A host without GPUs shares out
the cores of its CPU, which needs no numbers: units take turns over such hosts. Ranks of one
tensor-parallel group, and those of a server, are on one host.
"""

from __future__ import annotations

from collections.abc import Sequence


def rank_place(index: int, gpus: Sequence[int], tp: int = 1) -> tuple[int, int | None]:
    """Host and GPU of the rank with this number, by the GPUs of each host.

    Examples: rank_place(9, [8, 8]) -> (1, 1); rank_place(1, [0, 0]) -> (1, None)
    """
    if not any(gpus):
        return index // tp % len(gpus), None
    # Of a host whose GPUs are no multiple of a group's size, the last ones are left over.
    places = [(host, i) for host, n in enumerate(gpus) for i in range(n // tp * tp)]
    if not places:  # groups are larger than hosts, which nothing can repair here
        places = [(host, i) for host, n in enumerate(gpus) for i in range(n)]
    return places[index % len(places)]


def server_host(index: int, gpus: Sequence[int], tp: int) -> int:
    """Host of the server with this number, by the GPUs of each host.

    Examples: server_host(0, [8, 8], 2) -> 1; server_host(4, [8, 8], 2) -> 0
    """
    blocks = [
        host
        for host in reversed(range(len(gpus)))
        for _ in range(_blocks(gpus[host], tp, is_gpu_cluster=any(gpus)))
    ]
    return blocks[index % len(blocks)]


def first_server_device(index: int, tp: int, num_gpus: int) -> int:
    """The first of a server's `tp` neighbouring GPUs on its host: servers with successive numbers
    have different ones. Example: first_server_device(0, 2, 8) -> 6"""
    blocks = max(num_gpus // tp, 1)
    return max(num_gpus - tp * (index % blocks + 1), 0)


def _blocks(num_gpus: int, tp: int, *, is_gpu_cluster: bool) -> int:
    """How many servers a host takes before the next host's turn."""
    return max(num_gpus // tp, 1) if num_gpus or not is_gpu_cluster else 0
