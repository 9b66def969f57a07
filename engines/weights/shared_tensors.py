"""Tensors in memory that other processes of this host map: made here, opened there by name."""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

from infra.processes.leftovers import note_torch_memory

if TYPE_CHECKING:
    from torch import Tensor


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
    return [_handle(tensors) for _ in range(count)]


def _handle(tensors: Sequence[tuple[str, Tensor]]) -> str:
    data = io.BytesIO()
    with _by_file_name():
        ForkingPickler(data).dump(list(tensors))
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
