"""Weights through shared memory, for trainer and servers on one host.

One buffer is shared for the life of the process: a publish copies the weights into it (a memcpy)
and sends the servers a few kilobytes that say where each tensor lies. Models larger than the buffer
go in several rounds.
"""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

from engines.sglang.http import call, order
from engines.weight_sync.report import PublishReport
from engines.weight_sync.update import CONTROL_S, TRANSFER_S, UpdatingServers, updating
from infra.processes.leftovers import note_torch_memory

if TYPE_CHECKING:
    from torch import Tensor

BUFFER_BYTES = 1 << 30
_ALIGNMENT = 64
_publishing = threading.Lock()
_buffer: Tensor | None = None


def publish(
    named_tensors: Iterable[tuple[str, Tensor]],
    endpoints: Sequence[str],
    version: int,
    buffer_bytes: int = BUFFER_BYTES,
) -> PublishReport:
    """Copy all tensors (HF names, full shapes, any device) to the servers as weights `version`.

    Raises EngineError if a server refuses any step; see `updating` for what it then serves.
    """
    start = time.perf_counter()
    total, copying = 0, 0.0
    with _publishing, updating(endpoints, version) as servers:
        ranks = dict(zip(endpoints, servers.each(_tensor_parallel_size), strict=True))
        for bucket in _buckets(named_tensors, buffer_bytes):
            begin = time.perf_counter()
            placed = _place(bucket)
            copying += time.perf_counter() - begin
            total += sum(tensor.nbytes for _, tensor in placed)
            _send(servers, placed, ranks, version)
    return PublishReport(
        version=version,
        transport="shared_memory",
        bytes=total,
        servers=len(endpoints),
        seconds=time.perf_counter() - start,
        copy_seconds=copying,
    )


def _tensor_parallel_size(url: str) -> int:
    return int(call(url, "/server_info", timeout=CONTROL_S)["tp_size"])


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _buckets(
    named_tensors: Iterable[tuple[str, Tensor]], limit: int
) -> Generator[list[tuple[str, Tensor]]]:
    """Neighbours that fit into `limit` bytes together; a larger tensor goes alone."""
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in named_tensors:
        needed = _aligned(tensor.nbytes)
        if bucket and size + needed > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += needed
    if bucket:
        yield bucket


def _place(bucket: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """The same tensors as views of the shared buffer, which grows if it must."""
    import torch

    global _buffer
    needed = sum(_aligned(tensor.nbytes) for _, tensor in bucket)
    if _buffer is None or _buffer.nbytes < needed:
        with _by_file_name():
            _buffer = torch.empty(needed, dtype=torch.uint8).share_memory_()
            _, name, _ = _buffer.untyped_storage()._share_filename_cpu_()  # pyright: ignore[reportPrivateUsage]
        note_torch_memory(name.decode())
    placed: list[tuple[str, Tensor]] = []
    offset = 0
    for name, tensor in bucket:
        view = _buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor.detach())
        placed.append((name, view))
        offset += _aligned(tensor.nbytes)
    return placed


def _send(
    servers: UpdatingServers, placed: list[tuple[str, Tensor]], ranks: dict[str, int], version: int
) -> None:
    # Each rank of each server opens its own handle: torch counts them when it pickles.
    bodies = {
        url: {
            "serialized_named_tensors": [_handles(placed) for _ in range(num_ranks)],
            "flush_cache": False,
            "weight_version": str(version),
        }
        for url, num_ranks in ranks.items()
    }
    path = "/update_weights_from_tensor"
    servers.each(lambda url: order(url, path, bodies[url], timeout=TRANSFER_S))


def _handles(placed: list[tuple[str, Tensor]]) -> str:
    """Names, shapes and the buffer's file name, in the form SGLang unpickles; no weights."""
    data = io.BytesIO()
    with _by_file_name():
        ForkingPickler(data).dump(placed)
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
