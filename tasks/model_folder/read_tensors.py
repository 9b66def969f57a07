"""Whether the tensors that a model folder stores are those that its config.json describes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from engines.families.common.family import ModelShape
from engines.families.common.tensors import EMBEDDING, INDEX, OUTPUT, SINGLE, is_computed
from infra.data_files.heads import other_kind
from infra.errors import InputError
from infra.json_text import DuplicateKey, parse_json
from tasks.model_folder.model_files import ModelFiles

_FLOATS = ("BF16", "F16", "F32", "F64")
_SHOWN = 3
_COMPARED_BYTES = 4096
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
_MOST_AXES = 64
"""of a tensor; torch knows no more"""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".gguf")


def tensor_problems(
    files: ModelFiles, stored: Mapping[str, StoredTensor], shape: ModelShape
) -> Iterator[str]:
    """Missing and surplus tensors, wrong types and shapes, and an output that is not tied."""
    expected = {tensor.name: tensor.size(shape.axes) for tensor in shape.expected_tensors()}
    kept = {OUTPUT, *expected} if shape.is_tied else set(expected)
    yield from _missing([name for name in expected if name not in stored], stored)
    yield from _surplus([n for n in stored if n not in kept and not shape.is_kept(n)], stored)
    used = {name: tensor for name, tensor in stored.items() if name in kept}
    yield from _wrong_types(used)
    sizes = {**expected, OUTPUT: (shape.vocab, shape.hidden)}
    wrong = [name for name, tensor in used.items() if tensor.size != sizes[name]]
    for name in wrong[:_SHOWN]:
        yield (
            f"{stored[name].file}: {name} has shape {_text(stored[name].size)}, but config.json"
            f" says {_text(sizes[name])}; copy the two that belong together"
        )
    if not wrong and shape.is_tied and OUTPUT in used and EMBEDDING in used:
        yield from _not_tied(files, used[OUTPUT], used[EMBEDDING])


def extra_tensors(stored: Iterable[str], shape: ModelShape) -> list[str]:
    """Return the names of those that are of layers for multi-token prediction."""
    return [name for name in stored if shape.is_kept(name) and not is_computed(name)]


def unused_tensors(stored: Mapping[str, StoredTensor], shape: ModelShape | None) -> Iterator[str]:
    """One line for each kind of tensors that do no harm and are not used."""
    if shape and (extra := extra_tensors(stored, shape)):
        yield (
            f"{stored[extra[0]].file}: {listed(extra)}: layers for multi-token prediction are not"
            " trained; a trained model keeps them as they are"
        )
    computed = [name for name in stored if is_computed(name)]
    if computed:
        yield (
            f"{stored[computed[0]].file}: {listed(computed)}: not used, as rotary angles are"
            " computed anew; a trained model keeps them as they are"
        )


def _missing(names: Sequence[str], stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    if not names:
        return
    way_out = "copy the whole model, or correct config.json"
    if names == [OUTPUT]:
        way_out = "copy the whole model, or set tie_word_embeddings: true if it ties the two"
    file = _most_used(stored)
    yield f"{file}: lacks {listed(names)}, which config.json describes; {way_out}"


def _surplus(names: Sequence[str], stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    if names:
        yield (
            f"{stored[names[0]].file}: holds {listed(names)}, which config.json does not describe;"
            " give the plain model, without adapters, scales or other heads"
        )


def _wrong_types(used: Mapping[str, StoredTensor]) -> Iterator[str]:
    names = [name for name, tensor in used.items() if tensor.dtype not in _FLOATS]
    if names:
        first = used[names[0]]
        yield (
            f"{first.file}: {listed(names)} in type {first.dtype}; weights must be F32, BF16 or"
            " F16: give the folder of the model that is not quantised"
        )


def _not_tied(files: ModelFiles, output: StoredTensor, embedding: StoredTensor) -> Iterator[str]:
    if output.dtype != embedding.dtype:
        return
    middle = output.num_bytes // 2
    at, end = max(0, middle - _COMPARED_BYTES), min(output.num_bytes, middle + _COMPARED_BYTES)
    one, other = files.read_ranges(
        [(tensor.file, tensor.start + at, tensor.start + end) for tensor in (output, embedding)]
    )
    if one != other:
        yield (
            f"config.json: tie_word_embeddings is true, but {OUTPUT} differs from {EMBEDDING}; set"
            f" it to false, or remove {OUTPUT}"
        )


def _most_used(stored: Mapping[str, StoredTensor]) -> str:
    files = Counter(tensor.file for tensor in stored.values())
    return files.most_common(1)[0][0] if files else SINGLE


def listed(names: Sequence[str]) -> str:
    """e.g. `2 tensors (a.weight, b.weight)`."""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
    return f"{what} ({', '.join(names[:_SHOWN])}{more})"


def _text(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size)) or "of a single number"


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
    """Return every tensor by name. Raises InputError that begins with the name of the faulty
    file."""
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
        raise InputError(f"{SINGLE}: is missing; {_way_out(sorted(pickled)[0])}")
    raise InputError(f"{SINGLE}: is missing, and so is {INDEX}; copy the weights")


def _way_out(file: str) -> str:
    if file.endswith(".gguf"):
        return f"for the model in {file}, name that file in place of its folder"
    return (
        f"{file} is not read, as only safetensors are: load the model with transformers and save it"
        " with save_pretrained(FOLDER)"
    )


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
    for name, head, length in zip(names, heads, lengths, strict=True):
        if length > _LARGEST_HEADER or other_kind(head, "safetensors"):
            raise _no_safetensors(name, head)
        if 8 + length > sizes[name]:
            raise _cut_short(name, sizes[name], 8 + length)
    for name, head, length in zip(names, heads, lengths, strict=True):
        if 8 + length > len(head):
            (head,) = files.read_ranges([(name, 0, 8 + length)])
        yield from _entries(name, head[8 : 8 + length], sizes[name])


def _entries(file: str, header: bytes, size: int) -> Iterator[tuple[str, StoredTensor]]:
    """Tensors lie one after the other, from the header to the file's end, as the format says."""
    begin = 8 + len(header)
    places: list[tuple[int, int, str]] = []
    try:
        entries: dict[str, Any] = parse_json(header)
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            first, last = map(int, entry["data_offsets"])
            shape = tuple(int(n) for n in entry["shape"][:_MOST_AXES])
            if min(first, *shape, 0) < 0 or len(entry["shape"]) > len(shape):
                raise ValueError("a size below zero, or of too many axes")
            tensor = StoredTensor(file, str(entry["dtype"]), shape, begin + first)
            if tensor.num_bytes != last - first and tensor.dtype in _BYTES:
                raise InputError(f"{file}: stores {name} in {last - first} bytes, not"
                                 f" {tensor.num_bytes}; copy it again")  # fmt: skip
            places.append((begin + first, begin + last, name))
            yield name, tensor
    except DuplicateKey as error:
        raise InputError(f"{file}: its header is damaged: {error}; copy it again") from None
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _no_safetensors(file) from None
    _require_no_gaps(file, sorted(places), begin, size)


def _require_no_gaps(
    file: str, places: Sequence[tuple[int, int, str]], begin: int, size: int
) -> None:
    end, before = begin, "the header"
    for first, last, name in places:
        if first != end:
            what = "lies over" if first < end else "leaves a gap after"
            raise InputError(
                f"{file}: {name} {what} {before}: it begins at byte {first}, not {end}; copy it"
                " again from a source that you trust"
            )
        end, before = last, name
    if end != size:
        raise _cut_short(file, size, end, next((n for _, last, n in places if last > size), ""))


def _no_safetensors(file: str, head: bytes = b"") -> InputError:
    said = other_kind(head, "safetensors") if head else ""
    damaged = "is no safetensors file, or its header is damaged; copy it again"
    return InputError(f"{file}: {said or damaged}")


def _cut_short(file: str, size: int, wanted: int, tensor: str = "") -> InputError:
    what = "is cut short" if size < wanted else "is longer than its header says"
    what += f" within {tensor}" if tensor else ""
    return InputError(f"{file}: {what}: {size} bytes instead of {wanted}; copy it again")
