"""Whether the tensors that a model folder stores are those that its config.json describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from engines.families.common.family import ModelShape
from engines.families.common.tensors import EMBEDDING, OUTPUT, SINGLE, is_computed
from tasks.model_folder.files import ModelFiles
from tasks.model_folder.stored_tensors import StoredTensor

_FLOATS = ("BF16", "F16", "F32", "F64")
_SHOWN = 3
_COMPARED_BYTES = 4096


def tensor_problems(
    files: ModelFiles, stored: Mapping[str, StoredTensor], shape: ModelShape
) -> Iterator[str]:
    """Missing and surplus tensors, wrong types and shapes, and an output that is not tied."""
    expected = {tensor.name: tensor.size(shape.axes) for tensor in shape.expected_tensors()}
    kept = {OUTPUT, *expected} if shape.is_tied else set(expected)
    yield from _missing([name for name in expected if name not in stored], stored)
    yield from _surplus([n for n in stored if n not in kept and not is_computed(n)], stored)
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


def unused_tensors(stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    """One line if there are tensors that do no harm and are not used."""
    computed = [name for name in stored if is_computed(name)]
    if computed:
        yield (
            f"{stored[computed[0]].file}: {_listed(computed)}: not used, as rotary angles are"
            " computed anew; a trained model keeps them as they are"
        )


def _missing(names: Sequence[str], stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    if not names:
        return
    way_out = "copy the whole model, or correct config.json"
    if names == [OUTPUT]:
        way_out = "copy the whole model, or set tie_word_embeddings: true if it ties the two"
    file = _most_used(stored)
    yield f"{file}: lacks {_listed(names)}, which config.json describes; {way_out}"


def _surplus(names: Sequence[str], stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    if names:
        yield (
            f"{stored[names[0]].file}: holds {_listed(names)}, which config.json does not describe;"
            " give the plain model, without adapters, scales or other heads"
        )


def _wrong_types(used: Mapping[str, StoredTensor]) -> Iterator[str]:
    names = [name for name, tensor in used.items() if tensor.dtype not in _FLOATS]
    if names:
        first = used[names[0]]
        yield (
            f"{first.file}: {_listed(names)} in type {first.dtype}; weights must be F32, BF16 or"
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


def _listed(names: Sequence[str]) -> str:
    """e.g. `2 tensors (a.weight, b.weight)`."""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
    return f"{what} ({', '.join(names[:_SHOWN])}{more})"


def _text(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size)) or "of a single number"
