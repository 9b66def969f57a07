"""A dist_checkpointing folder as an HF folder. Needs torch, and no Megatron."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engines.families.common.family import ModelShape
from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.families.common.tensors import INDEX, HfTensor
from engines.megatron.convert.dist_folder import DistWeights, parameters

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
    axes = shape.axes
    parts = [part for tensor in tensors for part in tensor.rows]
    pieces: list[Tensor]
    if parts == ["queries", "keys", "keys"]:
        width = shape.head_dim
        by_group = stored.reshape(shape.kv_groups, -1, *stored.shape[1:])
        split = by_group.split([shape.heads // shape.kv_groups * width, width, width], 1)
        pieces = [piece.reshape(-1, *stored.shape[1:]) for piece in split]
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
