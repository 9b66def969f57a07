"""Writes HF folders: a dist_checkpointing folder as one, in bfloat16 a folder whose matrices are
FP8 with a scale for each block, as DeepSeek's are, and the text model of one that sees images.
Needs torch, and no Megatron.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from engines.families.common.family import ModelShape
from engines.families.common.model_config import read_config
from engines.families.common.registry import TEXT_OF, family_of, model_shape
from engines.families.common.tensors import INDEX, OUTPUT, SINGLE, HfTensor
from engines.megatron.hf.dist_folder import DistWeights, parameters
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.qkv import is_qkv, ungrouped
from engines.weights.fp8_blocks import SCALES, dequantised
from infra.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


_COPIED = (".json", ".jinja", ".txt", ".model", ".md", "LICENSE")
"""ends of the names of files that say what a model is"""
_NOT_COPIED = ("metadata.json", INDEX)
"""of these, what says how one folder stores the weights"""


def write_hf_folder(source: Path, like: Path, folder: Path) -> None:
    """Write the weights in `source` to `folder`, with the configuration and the tokenizer of `like`
    (a folder with these files, e.g. `source` itself). Raises InputError."""
    from huggingface_hub import save_torch_state_dict

    shape = model_shape(read_config(like))
    weights = DistWeights(source)
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(dict(_tensors(weights, shape)), folder)
    copy_descriptions(like, folder)


def copy_descriptions(source: Path, folder: Path) -> None:
    """Copy a model's configuration and tokenizer, and what a person may read about it."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name.endswith(_COPIED) and path.name not in _NOT_COPIED:
            shutil.copyfile(path, folder / path.name)


def _tensors(weights: DistWeights, shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    for name, layer in parameters(shape):
        stored = weights.read(name, layer, shape.num_layers)
        full = name if layer is None else f"decoder.layers.{layer}.{name}"
        yield from _parted(stored, shape.family.tensors.of_parameter(full), shape)


def _parted(
    stored: Tensor, tensors: tuple[HfTensor, ...], shape: ModelShape
) -> Iterator[tuple[str, Tensor]]:
    """The HF tensors that one parameter is made of: its rows one below another, but for queries,
    keys and values, which Megatron keeps by KV group."""
    if tensors[0].is_stacked:
        yield tensors[0].name, stored.contiguous().clone()
        return
    axes = shape.axes
    parts = [part for tensor in tensors for part in tensor.rows]
    pieces: list[Tensor]
    if is_qkv(parts):
        by_group = stored.reshape(shape.kv_groups, -1, *stored.shape[1:])
        pieces = [piece.reshape(-1, *stored.shape[1:]) for piece in ungrouped(by_group, shape)]
    else:
        used = stored[: sum(axes[part] for part in parts)]  # Megatron may pad the vocabulary
        pieces = list(used.split([axes[part] for part in parts]))
    for tensor in tensors:
        own = [pieces.pop(0) for _ in tensor.rows]
        whole = own[0] if len(own) == 1 else own[0].new_empty(0)
        if len(own) > 1:
            import torch

            whole = torch.cat(own)
        yield tensor.name, whole.contiguous().clone()


def write_plain_folder(source: Path, folder: Path) -> int:
    """Write the FP8 folder `source` without scales, file by file; returns how many matrices were
    FP8. Raises InputError."""
    config, weights = read_config(source), HfWeights(source)
    block = _block(config)
    copy_descriptions(source, folder)
    kept = {name: file for name, file in weights.file_of.items() if not name.endswith(SCALES)}
    count = 0
    for file in sorted(set(kept.values())):
        named: dict[str, Tensor] = {}
        for name in (name for name, own in kept.items() if own == file):
            named[name] = weights.read(name)
            if named[name].element_size() == 1:
                try:
                    named[name] = dequantised(named[name], weights.read(name + SCALES), block)
                except InputError as error:
                    raise InputError(f"{source}/{file}: {name}: {error}") from None
                count += 1
        save_file(named, folder / file, metadata={"format": "pt"})
    (folder / INDEX).unlink(missing_ok=True)
    if set(kept.values()) != {SINGLE}:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": kept}, indent=1))
    plain = {n: v for n, v in config.items() if n not in ("quantization_config", "torch_dtype")}
    (folder / "config.json").write_text(json.dumps(plain | {"dtype": "bfloat16"}, indent=2))
    return count


_TEXT, _EYES = "model.language_model.", "model.visual."
_OF_EYES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


_OF_BOTH = ("tie_word_embeddings", "dtype", "torch_dtype")
"""what the config of a model with eyes says of its text model beside `text_config`"""


def write_text_folder(source: Path, folder: Path) -> int:
    """Write the text model of the folder `source`, which sees images as well; returns how many
    tensors were left out. Layers for multi-token prediction stay. Raises InputError."""
    config, weights = read_config(source), HfWeights(source)
    text = config.get("text_config")
    family = family_of({"model_type": TEXT_OF[config["model_type"]]})
    if not isinstance(text, dict):
        raise InputError(f"{source}/config.json: has no text_config; copy the whole model")
    if "quantization_config" in {**text, **config}:
        raise InputError(
            f"{source}/config.json: quantization_config: its text model is written from plain"
            " numbers; give the model in bfloat16, or write FP8 as bfloat16 first, by `convert`"
        )
    kept = {name: file for name, file in weights.file_of.items() if not name.startswith(_EYES)}
    begins = (_TEXT, OUTPUT, *family.kept)
    if unknown := [name for name in kept if not name.startswith(begins)]:
        raise InputError(
            f"{source} holds {unknown[0]}, which is neither of the text model ({_TEXT}) nor of its"
            f" eyes ({_EYES}); give the model as its makers published it"
        )
    copy_descriptions(source, folder)
    for name in (INDEX, *_OF_EYES):
        (folder / name).unlink(missing_ok=True)
    named = {name: name.replace(_TEXT, "model.", 1) for name in kept}
    for file in sorted(set(kept.values())):
        own = {named[name]: weights.read(name) for name in kept if kept[name] == file}
        save_file(own, folder / file, metadata={"format": "pt"})
    if set(kept.values()) != {SINGLE}:
        index = {"metadata": {}, "weight_map": {named[name]: kept[name] for name in kept}}
        (folder / INDEX).write_text(json.dumps(index, indent=1))
    outer = {key: config[key] for key in _OF_BOTH if key in config}
    made = {**text, **outer, "architectures": [family.architecture]}
    (folder / "config.json").write_text(json.dumps(made, indent=2))
    return len(weights.file_of) - len(kept)


def _block(config: Mapping[str, Any]) -> tuple[int, int]:
    match config["quantization_config"].get("weight_block_size"):
        case [int(high), int(wide)] if high > 0 and wide > 0:
            return high, wide
        case other:
            raise InputError(
                f"config.json: quantization_config.weight_block_size is {other!r}; FP8 with a scale"
                " for each block is read, e.g. [128, 128]: give the model in bfloat16"
            )
