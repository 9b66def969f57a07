"""Tensors in memory that other processes of this host map: made here, opened there by name."""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import TYPE_CHECKING

from infra.processes.leftovers import note_torch_memory

if TYPE_CHECKING:
    from torch import Tensor

    from engines.weights.buckets import Bucket

FLAT = "flattened_bucket"
"""SGLang's name for a bucket with the places of its tensors"""


def allocate(num_bytes: int) -> Tensor:
    """Shared memory of type uint8, which lives as long as a process has it open."""
    import torch

    with _by_file_name():
        shared = torch.empty(num_bytes, dtype=torch.uint8).share_memory_()
        _, name, _ = shared.untyped_storage()._share_filename_cpu_()  # pyright: ignore[reportPrivateUsage]
    note_torch_memory(name.decode())
    return shared


def handles(tensors: Sequence[tuple[str, Tensor]], count: int) -> list[str]:
    """Names, shapes and the memory's file name, in the form SGLang unpickles; no weights.

    One for each process that opens them: torch counts them when it pickles.
    """
    return [pickled(list(tensors)) for _ in range(count)]


def flat_handles(bucket: Bucket, count: int) -> list[str]:
    """The same of a whole bucket, which is opened once instead of once for each tensor; for
    SGLang's load format `FLAT`."""
    record = {"flattened_tensor": bucket.flat, "metadata": places_in(bucket)}
    return [pickled(record) for _ in range(count)]


def places_in(bucket: Bucket) -> list[SimpleNamespace]:
    """Where each tensor lies, as SGLang reads it, in types that it lets through."""
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
