"""Megatron's dist_checkpointing folders, as they are read without Megatron."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from engines.families.common.registry import model_shape
from engines.megatron.convert.dist_folder import DistWeights, parameters
from engines.megatron.convert.write_hf import copy_descriptions
from infra.errors import InputError
from tests.parts.families import EXAMPLES, SIZES

pytestmark = pytest.mark.unit


def test_what_all_layers_have_in_one_tensor_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {
        "decoder.layers.norm": torch.arange(12.0).reshape(3, 4),
        "decoder.layers.bias": torch.arange(6.0).reshape(3, 2),
        "top": torch.ones(2),
    }
    save(dict(stored), storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    reads: list[str] = []
    read_data: Any = FileSystemReader.read_data

    def counted(self: FileSystemReader, plan: Any, planner: Any) -> Any:
        reads.extend(item.storage_index.fqn for item in plan.items)
        return read_data(self, plan, planner)

    monkeypatch.setattr(FileSystemReader, "read_data", counted)
    weights = DistWeights(tmp_path)
    for name in ("norm", "bias"):
        for layer in range(3):
            expected = stored[f"decoder.layers.{name}"][layer]
            assert torch.equal(weights.read(name, layer, 3), expected)
    assert torch.equal(weights.read("top", None, 3), stored["top"])
    assert reads == ["decoder.layers.norm", "decoder.layers.bias", "top"]
    with pytest.raises(InputError, match="lacks norm of layer 0, which config"):
        weights.read("norm", 0, 4)


def test_all_layers_of_one_name_are_asked_for_in_a_row() -> None:
    shape = model_shape({"model_type": "qwen3", **SIZES, **EXAMPLES["qwen3"].config})
    names = [name for name, layer in parameters(shape) if layer is not None]
    assert len(list(groupby(names))) == len(set(names))
    assert len(names) == len(set(names)) * shape.num_layers


def test_what_says_how_a_folder_stores_its_weights_is_not_copied(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    copied = ["LICENSE", "README.md", "chat_template.jinja", "config.json", "tokenizer.json"]
    left = ["metadata.json", "model.safetensors", "model.safetensors.index.json", "weights.bin"]
    for name in [*copied, *left]:
        (source / name).write_text(name)
    copy_descriptions(source, folder)
    assert sorted(path.name for path in folder.iterdir()) == copied
