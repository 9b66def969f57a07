"""Which tensors a model folder stores, from the headers of its safetensors files alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from engines.families.common.tensors import INDEX, SINGLE
from infra.errors import InputError
from tasks.model_folder.files import ModelFiles

_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
}
"""of an element; one byte for any other type"""
_GUESS = 1 << 16
"""bytes that hold most headers: one request a file is then enough"""
_LARGEST_HEADER = 100_000_000
"""bytes; the safetensors format allows no larger one"""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".gguf")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Example: file="model.safetensors", dtype="BF16", size=(512, 128), start=4096"""

    file: str
    dtype: str
    size: tuple[int, ...]
    start: int
    """where its bytes begin in the file"""

    @property
    def num_bytes(self) -> int:
        return prod(self.size) * _BYTES.get(self.dtype, 1)


def stored_tensors(files: ModelFiles) -> dict[str, StoredTensor]:
    """Every tensor by name. Raises InputError that begins with the name of the faulty file."""
    file_of = _index(files)
    found = dict(_headers(files, _named(files, file_of)))
    for name, file in file_of.items():
        if name not in found or found[name].file != file:
            raise InputError(
                f"{INDEX}: says that {file} holds {name}, which it does not; copy both files again"
            )
    return {name: found[name] for name in file_of} if file_of else found


def weight_files(files: ModelFiles) -> list[str]:
    """Names of the safetensors files that belong to the model. Raises InputError."""
    return _named(files, _index(files))


def _named(files: ModelFiles, file_of: Mapping[str, str]) -> list[str]:
    if file_of:
        named = sorted(set(file_of.values()))
        gone = [file for file in named if file not in files.sizes]
        if gone:
            raise InputError(
                f"{INDEX}: names {', '.join(gone[:3])}, missing {len(gone)} of {len(named)} files;"
                " copy what is missing"
            )
        return named
    if SINGLE in files.sizes:
        return [SINGLE]
    parts = [name for name in files.sizes if name.endswith(".safetensors")]
    if parts:
        raise InputError(
            f"{INDEX}: is missing, and there is no {SINGLE}; copy the index of {sorted(parts)[0]}"
        )
    pickled = [name for name in files.sizes if name.endswith(_PICKLED)]
    if pickled:
        raise InputError(
            f"{SINGLE}: is missing; {sorted(pickled)[0]} is not read, as only safetensors are: load"
            " the model with transformers and save it with save_pretrained(FOLDER)"
        )
    raise InputError(f"{SINGLE}: is missing, and so is {INDEX}; copy the weights")


def _index(files: ModelFiles) -> dict[str, str]:
    """File by tensor name; empty for a folder without an index."""
    if INDEX not in files.sizes:
        return {}
    try:
        content = json.loads(files.read(INDEX))
        named = content["weight_map"]
        if named and all(isinstance(file, str) and "/" not in file for file in named.values()):
            return dict(named)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise InputError(f"{INDEX}: has no `weight_map` from tensors to files; copy it again")


def _headers(files: ModelFiles, names: list[str]) -> Iterator[tuple[str, StoredTensor]]:
    sizes = files.sizes
    for name in names:
        if sizes[name] < 8:
            raise _no_safetensors(name)
    heads = files.read_ranges([(name, 0, min(sizes[name], _GUESS)) for name in names])
    lengths = [int.from_bytes(head[:8], "little") for head in heads]
    for name, length in zip(names, lengths, strict=True):
        if length > _LARGEST_HEADER:
            raise _no_safetensors(name)
        if 8 + length > sizes[name]:
            raise _cut_short(name, sizes[name], 8 + length)
    for name, head, length in zip(names, heads, lengths, strict=True):
        if 8 + length > len(head):
            (head,) = files.read_ranges([(name, 0, 8 + length)])
        yield from _entries(name, head[8 : 8 + length], sizes[name])


def _entries(file: str, header: bytes, size: int) -> Iterator[tuple[str, StoredTensor]]:
    begin, end = 8 + len(header), 8 + len(header)
    try:
        entries: dict[str, Any] = json.loads(header)
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            first, last = entry["data_offsets"]
            shape = tuple(int(n) for n in entry["shape"])
            tensor = StoredTensor(file, str(entry["dtype"]), shape, begin + int(first))
            if tensor.num_bytes != last - first and tensor.dtype in _BYTES:
                raise InputError(f"{file}: stores {name} in {last - first} bytes, not"
                                 f" {tensor.num_bytes}; copy it again")  # fmt: skip
            end = max(end, begin + int(last))
            yield name, tensor
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _no_safetensors(file) from None
    if end != size:
        raise _cut_short(file, size, end)


def _no_safetensors(file: str) -> InputError:
    return InputError(f"{file}: is no safetensors file, or its header is damaged; copy it again")


def _cut_short(file: str, size: int, wanted: int) -> InputError:
    what = "is cut short" if size < wanted else "is longer than its header says"
    return InputError(f"{file}: {what}: {size} bytes instead of {wanted}; copy it again")
