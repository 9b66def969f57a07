"""Megatron's dist_checkpointing folders, as they are read without Megatron."""

from __future__ import annotations

import json
import os
import pickle
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron.hf.dist_folder import DistWeights, parameters
from engines.megatron.hf.write_hf import (
    copy_descriptions,
    write_plain_folder,
    write_text_folder,
)
from engines.weights.fp8_blocks import dequantised
from infra.errors import InputError
from tests.parts.families import EXAMPLES, SIZES
from tests.parts.seeing import seeing_folder

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


class Runs:
    """What a pickle can hold: reading it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._file),)


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within an index"])
def test_a_program_in_the_index_of_a_folder_is_refused_and_does_not_run(
    tmp_path: Path, within: bool
) -> None:
    save({"top": torch.ones(2)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    index, ran = tmp_path / ".metadata", tmp_path / "ran"
    metadata: Any = pickle.loads(index.read_bytes())
    metadata.planner_data = Runs(ran)
    index.write_bytes(pickle.dumps(metadata if within else Runs(ran)))
    with pytest.raises(InputError, match=r"names posix\.mkdir.*HF folder of safetensors"):
        DistWeights(tmp_path)
    assert not ran.exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cbuiltins\neval\n(V1\ntR.",
        b"\x80\x04\x8c\x05torch\x8c\x08hub.load\x93.",  # a dotted name below an allowed module
        b"\x80\x04\x8c\x07pathlib\x8c\x09os.system\x93.",
        b"\x80\x02\x82\x01.",  # a number of copyreg's registry
        b"\x80\x04\x8c\x01a\x51.",  # a persistent id
        b"N.",
    ],
)
def test_an_index_that_names_something_else_in_any_way_is_refused(
    tmp_path: Path, opcodes: bytes
) -> None:
    (tmp_path / ".metadata").write_bytes(opcodes)
    with pytest.raises(InputError):
        DistWeights(tmp_path)


def test_an_index_that_names_a_file_outside_of_its_folder_is_refused(tmp_path: Path) -> None:
    save({"top": torch.ones(2)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    index = tmp_path / ".metadata"
    metadata: Any = pickle.loads(index.read_bytes())
    for stored in metadata.storage_data.values():
        stored.relative_path = "../elsewhere.distcp"
    index.write_bytes(pickle.dumps(metadata))
    with pytest.raises(InputError, match=r"outside of its folder: \.\./elsewhere"):
        DistWeights(tmp_path)


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


def test_the_text_model_of_one_with_eyes_says_what_that_one_says(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source, folder = tmp_path / "seeing", tmp_path / "text"
    seeing = seeing_folder(source)
    folder.mkdir()
    left_out = write_text_folder(source, folder)
    assert left_out == sum(1 for name in seeing.state_dict() if ".visual." in name) > 0
    stored, config = load_file(folder / "model.safetensors"), read_config(folder)
    assert torch.equal(stored.pop("mtp.fc.weight"), torch.ones(2, 4))
    shape = model_shape(config)
    assert {t.name: t.size(shape.axes) for t in shape.expected_tensors()} == {
        name: tuple(tensor.shape) for name, tensor in stored.items()
    }
    assert (shape.is_tied, config["architectures"]) == (True, ["Qwen3_5ForCausalLM"])
    assert not (folder / "preprocessor_config.json").exists()
    text: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(text(tokens).logits, seeing(tokens).logits)


def test_a_model_with_eyes_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    seeing_folder(tmp_path)
    stored = load_file(tmp_path / "model.safetensors") | {"model.audio.weight": torch.ones(1)}
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"holds model\.audio\.weight, which is neither"):
        write_text_folder(tmp_path, tmp_path / "text")


def test_a_model_with_eyes_that_is_quantised_is_refused(tmp_path: Path) -> None:
    seeing_folder(tmp_path)
    config = read_config(tmp_path) | {"quantization_config": {"quant_method": "awq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"quantization_config: .* in bfloat16"):
        write_text_folder(tmp_path, tmp_path / "text")


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [2, 2]}


def fp8_folder(folder: Path, scales: torch.Tensor, **changes: Any) -> Path:
    """A matrix of FP8, of three rows and columns in blocks of two, and a norm beside it."""
    folder.mkdir()
    numbers = torch.tensor([[1.0, 2.0, -4.0], [0.5, -8.0, 16.0], [3.0, 0.0, 448.0]])
    tensors = {
        "a.weight": numbers.to(torch.float8_e4m3fn),
        "a.weight_scale_inv": scales,
        "norm.weight": torch.ones(3, dtype=torch.bfloat16),
    }
    save_file(tensors, folder / "model.safetensors")
    config = {"torch_dtype": "bfloat16", "quantization_config": FP8 | changes, "vocab_size": 3}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SCALES = torch.tensor([[2.0, 0.5], [10.0, 0.25]])


def test_fp8_is_read_with_the_scale_of_each_block(tmp_path: Path) -> None:
    """The first block is doubled, the column beside it halved, the row below it times ten, and the
    corner divided by four."""
    source = fp8_folder(tmp_path / "fp8", SCALES)
    assert write_plain_folder(source, tmp_path) == 1
    stored = load_file(tmp_path / "model.safetensors")
    expected = [[2.0, 4.0, -2.0], [1.0, -16.0, 8.0], [30.0, 0.0, 112.0]]
    assert stored["a.weight"].tolist() == expected
    assert {name: str(t.dtype) for name, t in stored.items()} == {
        "a.weight": "torch.bfloat16",
        "norm.weight": "torch.bfloat16",
    }
    written = json.loads((tmp_path / "config.json").read_text())
    assert written == {"dtype": "bfloat16", "vocab_size": 3}


def test_fp8_that_does_not_fit_its_scales_is_refused(tmp_path: Path) -> None:
    source = fp8_folder(tmp_path / "cut", SCALES[:1])
    with pytest.raises(InputError, match=r"a\.weight: scales of \(1, 2\) do not fit a matrix of 3"):
        write_plain_folder(source, tmp_path)
    whole = fp8_folder(tmp_path / "whole", SCALES, weight_block_size=None)
    with pytest.raises(InputError, match="weight_block_size is None"):
        write_plain_folder(whole, tmp_path)
    with pytest.raises(InputError, match="do not fit"):
        dequantised(torch.ones(4, 4), torch.ones(2, 3), (2, 2))
    with pytest.raises(InputError, match="FP8 of 3 dimensions"):
        dequantised(torch.ones(4, 4, 4), torch.ones(2, 2), (2, 2))
