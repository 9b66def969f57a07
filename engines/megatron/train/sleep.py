"""Giving back the device memory of a rank's tensors, and taking it again with what they held.

On a GPU the bytes wait in pinned host memory; where the device is the CPU, in a file: host memory
is what sleeping has to give back there. The tensors themselves stay, with all views of them, and
are empty meanwhile.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

import torch
from torch import Tensor, UntypedStorage

from infra.home import home

_CHUNK = 1 << 28


@dataclass(slots=True)
class SleepingMemory:
    """The emptied storages of a rank's tensors; made by `put_to_sleep`."""

    in_host_memory: list[tuple[UntypedStorage, Tensor]] = field(
        default_factory=list[tuple[UntypedStorage, Tensor]]
    )
    """with their bytes"""
    in_file: list[tuple[UntypedStorage, int]] = field(
        default_factory=list[tuple[UntypedStorage, int]]
    )
    """with their sizes, in the order in which `file` has their bytes"""
    zeroed: list[tuple[UntypedStorage, int]] = field(
        default_factory=list[tuple[UntypedStorage, int]]
    )
    file: IO[bytes] | None = None

    @property
    def num_bytes(self) -> int:
        """What the device got back."""
        sizes = [size for _, size in (*self.in_file, *self.zeroed)]
        return sum(sizes) + sum(held.numel() for _, held in self.in_host_memory)

    def wake(self) -> None:
        """Take the memory again; every tensor holds the same bits as before, or zeros."""
        for storage, held in self.in_host_memory:
            storage.resize_(held.numel())
            _bytes_of(storage).copy_(held)
        if self.file is not None:
            self.file.seek(0)
            for storage, size in self.in_file:
                storage.resize_(size)
                _read(self.file, _bytes_of(storage))
            self.file.close()
        for storage, size in self.zeroed:
            storage.resize_(size)
            _bytes_of(storage).zero_()


def put_to_sleep(kept: Iterable[Tensor], zeroed: Iterable[Tensor]) -> SleepingMemory:
    """Empty these tensors: `kept` come back as they are, `zeroed` come back as zeros."""
    memory = SleepingMemory()
    seen: set[int] = set()
    for storage in _storages(kept, seen):
        if storage.device.type == "cpu":
            # On a disk: the folder of temporary files may be memory itself.
            memory.file = memory.file or tempfile.TemporaryFile(dir=home())  # noqa: SIM115
            memory.file.write(memoryview(_bytes_of(storage).numpy()))
            memory.in_file.append((storage, storage.nbytes()))
        else:
            memory.in_host_memory.append((storage, _bytes_of(storage).to("cpu").pin_memory()))
    memory.zeroed = [(storage, storage.nbytes()) for storage in _storages(zeroed, seen)]
    for storage, _ in (*memory.in_host_memory, *memory.in_file, *memory.zeroed):
        storage.resize_(0)
    _return_free_memory()
    return memory


def _storages(tensors: Iterable[Tensor], seen: set[int]) -> Iterator[UntypedStorage]:
    """The storage of each tensor that has memory, once however many tensors share it."""
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _read(file: IO[bytes], whole: Tensor) -> None:
    into, start = memoryview(whole.numpy()), 0
    while start < len(into):
        part = file.read(min(_CHUNK, len(into) - start))
        if not part:
            raise OSError(f"the file of a sleeping rank ends {len(into) - start} bytes early")
        into[start : start + len(part)] = part
        start += len(part)


def _return_free_memory() -> None:
    """What is free inside this process goes back to the system, not only to its allocators."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    else:
        ctypes.CDLL(None).malloc_trim(0)
