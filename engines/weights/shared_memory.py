"""Weights through shared memory, for trainer and servers on one host.

A push copies weights into memory that both map, and sends the servers a few kilobytes that say
where each tensor lies.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.http import order
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import Bucket, TrainedWeights
from engines.weights.report import PublishReport
from engines.weights.stream import stream
from engines.weights.transport import Target
from engines.weights.update import TAKE_S, Servers
from infra.processes.leftovers import note_torch_memory

if TYPE_CHECKING:
    from torch import Tensor


class SharedMemory:
    """See `Transport`. Keeps its memory between pushes: to map it anew costs more than to copy."""

    name = "shared memory"

    def __init__(self) -> None:
        self._slots: dict[int, Tensor] = {}

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        ranks_of = {target.url: target.num_ranks for target in targets}

        def send(servers: Servers, bucket: Bucket) -> list[Future[Any]]:
            # Each rank of each server opens its own handle: torch counts them when it pickles.
            handles = {
                url: [_handles(bucket) for _ in range(num_ranks)]
                for url, num_ranks in ranks_of.items()
            }
            return servers.start(lambda url: tell(url, handles[url], bucket.flat.nbytes))

        return stream(self.name, weights, targets, version, self._memory, send)

    def close(self) -> None:
        self._slots.clear()

    def _memory(self, slot: int, num_bytes: int) -> Tensor:
        import torch

        if slot not in self._slots or self._slots[slot].nbytes < num_bytes:
            self._slots.pop(slot, None)
            with _by_file_name():
                shared = torch.empty(num_bytes, dtype=torch.uint8).share_memory_()
                _, name, _ = shared.untyped_storage()._share_filename_cpu_()  # pyright: ignore[reportPrivateUsage]
            note_torch_memory(name.decode())
            self._slots[slot] = shared
        return self._slots[slot]


def tell(url: str, handles: list[str], num_bytes: int) -> None:
    """Have a server read a bucket: one handle for each of its ranks."""
    body = {
        "serialized_named_tensors": handles,
        "flush_cache": False,
        "weight_version": BROKEN_WEIGHTS,
    }
    order(url, "/update_weights_from_tensor", body, timeout=transfer_bound_s(num_bytes, TAKE_S))


def _handles(bucket: Bucket) -> str:
    """Names, shapes and the memory's file name, in the form SGLang unpickles; no weights."""
    data = io.BytesIO()
    with _by_file_name():
        ForkingPickler(data).dump(list(bucket.tensors))
    return base64.b64encode(data.getvalue()).decode()


@contextmanager
def _by_file_name() -> Generator[None]:
    """Share by name: the default passes file descriptors, which ends an unrelated server."""
    import torch.multiprocessing

    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        yield
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
