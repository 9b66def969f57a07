"""Giving back the device memory of a rank's tensors, and taking it again with what they held.

On a GPU the bytes wait in pinned host memory (`HostMemory`), and the tensors are empty meanwhile.
Where the device is the CPU they wait in a file: host memory is what sleeping has to give back
there. The tensors keep their addresses and lose their pages. All views of a memory work again after
`wake`.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import IO

import torch
from torch import Tensor, UntypedStorage

from infra.home import home
from infra.processes.memory import give_back_freed_memory

_CHUNK = 1 << 28
_MADV_DONTNEED = 4
_ALIGNMENT = 512
"""of what waits in host memory: a device copies from there in whole lines"""


class HostMemory:
    """Host memory in which a part of a rank waits: one block that is as large as the part, not a
    block for each tensor, and stays from one sleep to the next. Pinned where there is a GPU."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)

    @property
    def num_bytes(self) -> int:
        return self._block.numel()

    def places(self, sizes: Sequence[int]) -> list[Tensor]:
        """Return a place of each of these sizes in bytes; those that it gave before are used
        again."""
        starts = starts_of(sizes)
        if self.num_bytes < starts[-1]:
            self._block = torch.empty(0, dtype=torch.uint8)  # the old one first gives its room back
            pinned = torch.cuda.is_initialized()
            self._block = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=pinned)
        return [self._block[start:][:size] for start, size in zip(starts, sizes, strict=False)]


def starts_of(sizes: Iterable[int]) -> list[int]:
    """Return where each size begins in a block, and at last the block's own size."""
    return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))


@dataclass(slots=True)
class SleepingMemory:
    """The storages of a rank's tensors without their content; made by `put_to_sleep`."""

    in_host_memory: list[tuple[UntypedStorage, Tensor]] = field(
        default_factory=list[tuple[UntypedStorage, Tensor]]
    )
    """with their bytes"""
    in_file: list[UntypedStorage] = field(default_factory=list[UntypedStorage])
    """in the order in which `file` has their bytes"""
    zeroed: list[tuple[UntypedStorage, int]] = field(
        default_factory=list[tuple[UntypedStorage, int]]
    )
    """with their sizes"""
    file: IO[bytes] | None = None

    @property
    def addresses(self) -> set[int]:
        """Return the addresses of storages that keep their addresses without their pages."""
        return {x.data_ptr() for x in (*self.in_file, *(storage for storage, _ in self.zeroed))}

    @property
    def num_bytes(self) -> int:
        """Return what the device got back."""
        kept = [held.numel() for _, held in self.in_host_memory]
        return sum(kept) + sum(x.nbytes() for x in self.in_file) + sum(n for _, n in self.zeroed)

    def wake(self) -> None:
        """Take the memory again; every tensor holds the same bits as before, or zeros."""
        for storage, held in self.in_host_memory:
            storage.resize_(held.numel())
            _bytes_of(storage).copy_(held, non_blocking=True)
        _finish_copies()
        if self.file is not None:
            self.file.seek(0)
            for storage in self.in_file:
                _read(self.file, _memory_of(storage))
            self.file.close()
        for storage, size in self.zeroed:
            if storage.nbytes() != size:
                storage.resize_(size)
            _bytes_of(storage).zero_()


def put_to_sleep(
    kept: Iterable[Tensor],
    zeroed: Iterable[Tensor],
    besides: Iterable[Tensor] = (),
    host: HostMemory | None = None,
) -> SleepingMemory:
    """Empty these tensors: `kept` come back as they are, `zeroed` come back as zeros. What they
    share with `besides` stays. `host`: where the bytes wait; None: in a file."""
    memory, seen = SleepingMemory(), {x.untyped_storage().data_ptr() for x in besides}
    storages = list(_storages(kept, seen))
    memory.zeroed = [(storage, storage.nbytes()) for storage in _storages(zeroed, seen)]
    if host is None:
        _write(memory, storages)
    else:
        places = host.places([storage.nbytes() for storage in storages])
        memory.in_host_memory = list(zip(storages, places, strict=True))
        for storage, place in memory.in_host_memory:
            place.copy_(_bytes_of(storage), non_blocking=True)
        _finish_copies()
    for storage in (*storages, *(storage for storage, _ in memory.zeroed)):
        if host is None:
            _drop_pages(storage)
        else:
            storage.resize_(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return memory


def _write(memory: SleepingMemory, storages: Iterable[UntypedStorage]) -> None:
    for storage in storages:
        # On a disk: the folder of temporary files may be memory itself.
        memory.file = memory.file or tempfile.TemporaryFile(dir=home())  # noqa: SIM115
        memory.file.write(_memory_of(storage))
        memory.in_file.append(storage)


def _finish_copies() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _storages(tensors: Iterable[Tensor], seen: set[int]) -> Iterator[UntypedStorage]:
    """The storage of each tensor that has memory, once however many tensors share it."""
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage


def _drop_pages(storage: UntypedStorage) -> None:
    """Give whole pages of a CPU's memory back, which from now on read as zeros."""
    page = mmap.PAGESIZE
    start = -(-storage.data_ptr() // page) * page
    size = (storage.data_ptr() + storage.nbytes()) // page * page - start
    libc = ctypes.CDLL(None, use_errno=True)
    place = ctypes.c_void_p(start), ctypes.c_size_t(max(size, 0))
    if size > 0 and libc.madvise(*place, _MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _memory_of(storage: UntypedStorage) -> memoryview:
    array = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    return memoryview(array).cast("B")


def _read(file: IO[bytes], into: memoryview) -> None:
    start = 0
    while start < len(into):
        part = file.read(min(_CHUNK, len(into) - start))
        if not part:
            raise OSError(f"the file of a sleeping rank ends {len(into) - start} bytes early")
        into[start : start + len(part)] = part
        start += len(part)


def on_device(emptied: Collection[int], shown: int = 5) -> tuple[int, tuple[str, ...]]:
    """Bytes of all live tensors of this process on its device, and the largest of them. Those
    count nothing whose storage lies at one of the addresses `emptied`, which have no pages.

    On a GPU the bytes are what torch's allocator says; a CUDA context and NCCL's buffers come on
    top of them, some hundred MiB that only the end of the process gives back.
    """
    place = "cuda" if torch.cuda.is_initialized() else "cpu"
    sizes = dict[int, tuple[int, str]]()
    for thing in gc.get_objects():
        # Of its type: a dead proxy raises when it is asked what it is.
        if _has_memory(type(thing)) and thing.device.type == place:
            storage = thing.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in emptied:
                sizes[storage.data_ptr()] = (storage.nbytes(), _described(thing))
    give_back_freed_memory()  # the list of all objects has megabytes
    largest = sorted(sizes.values(), reverse=True)
    seen = sum(size for size, _ in largest)
    total = torch.cuda.memory_allocated() if place == "cuda" else seen
    return total, tuple(f"{size / 1e6:.1f} MB {text}" for size, text in largest[:shown])


def _has_memory(kind: type) -> bool:
    """The tensors that torch.compile puts in place of others while it traces have none, and raise
    when they are asked where it is."""
    return issubclass(kind, Tensor) and not kind.__module__.startswith("torch._subclasses")


def _described(tensor: Tensor) -> str:
    """Example: "float32[4096, 2048]" """
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
