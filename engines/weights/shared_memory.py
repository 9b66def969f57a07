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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.http import order
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import TAKE_S, Bucket, TrainedWeights
from engines.weights.transport import PublishReport, Target
from engines.weights.update import Servers
from engines.weights.weight_stream import checked_stream
from infra.processes.leftovers import note_torch_memory

if TYPE_CHECKING:
    from torch import Tensor


FLAT = "flattened_bucket"
"""SGLang's name for a bucket with the places of its tensors"""


def allocate(num_bytes: int) -> Tensor:
    """Shared memory of type uint8, which lives as long as a process has it open."""
    import torch

    with _by_file_name():
        shared = torch.empty(num_bytes, dtype=torch.uint8).share_memory_()
        _, name, _ = shared.untyped_storage()._share_filename_cpu_()
    note_torch_memory(name.decode())
    return shared


def handles(tensors: Sequence[tuple[str, Tensor]], count: int) -> list[str]:
    """Names, shapes and the memory's file name, in the form SGLang unpickles; no weights.

    One for each process that opens them: torch counts them when it pickles.
    """
    return [pickled(list(tensors)) for _ in range(count)]


def flat_handles(bucket: Bucket, count: int) -> list[str]:
    """Make the handles of a whole bucket, which is opened once instead of once for each tensor; for
    SGLang's load format `FLAT`."""
    record = {"flattened_tensor": bucket.flat, "metadata": places_in(bucket)}
    return [pickled(record) for _ in range(count)]


def places_in(bucket: Bucket) -> list[SimpleNamespace]:
    """Return where each tensor lies, as SGLang reads it, in types that it lets through."""
    begin = bucket.flat.data_ptr()
    return [
        SimpleNamespace(
            name=name,
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            start_idx=tensor.data_ptr() - begin,
            end_idx=tensor.data_ptr() - begin + tensor.nbytes,
            numel=tensor.nbytes,
        )
        for name, tensor in bucket.tensors
    ]


def pickled(content: object) -> str:
    data = io.BytesIO()
    with _by_file_name():
        ForkingPickler(data).dump(content)
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
            told = {url: flat_handles(bucket, count) for url, count in ranks_of.items()}
            return servers.start(lambda url: tell(url, told[url], bucket.flat.nbytes))

        memory = self._memory
        return checked_stream(self.name, weights, targets, version, memory, send, allocate)

    def close(self) -> None:
        self._slots.clear()

    def _memory(self, slot: int, num_bytes: int) -> Tensor:
        if slot not in self._slots or self._slots[slot].nbytes < num_bytes:
            self._slots.pop(slot, None)
            self._slots[slot] = allocate(num_bytes)
        return self._slots[slot]


def tell(url: str, told: Sequence[str], num_bytes: int, load_format: str | None = FLAT) -> None:
    """Have a server read a bucket: one text of `flat_handles` for each of its ranks; with None as
    `load_format`, of `handles`."""
    body = {
        "serialized_named_tensors": list(told),
        "load_format": load_format,
        "flush_cache": False,
        "weight_version": BROKEN_WEIGHTS,
    }
    order(url, "/update_weights_from_tensor", body, timeout=transfer_bound_s(num_bytes, TAKE_S))
