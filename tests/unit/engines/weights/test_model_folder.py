"""An HF folder as the weights of a trainer of one rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engines.sglang.external.give_weights import folder_weights
from engines.weights.buckets import OwnMemory
from infra.errors import InputError

pytestmark = pytest.mark.unit


def test_all_files_of_the_index_are_packed_and_no_other(tmp_path: Path) -> None:
    save_file({"b": torch.arange(4.0), "a": torch.ones(2, 3)}, tmp_path / "1.safetensors")
    save_file({"c": torch.ones(5, dtype=torch.bfloat16)}, tmp_path / "2.safetensors")
    save_file({"old": torch.ones(9)}, tmp_path / "model.safetensors")
    named = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": named}))
    packed: dict[str, list[float]] = {}
    for bucket in folder_weights(tmp_path, bucket_bytes=40).buckets(OwnMemory()):
        assert bucket is not None
        packed |= {name: tensor.flatten().tolist() for name, tensor in bucket.tensors}
    assert packed == {"a": [1.0] * 6, "b": [0.0, 1.0, 2.0, 3.0], "c": [1.0] * 5}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has neither model.safetensors nor"),
        ({"model.safetensors.index.json": b"{}"}, "has no `weight_map`"),
        ({"model.safetensors": b"short"}, "cannot be read"),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "gone.safetensors"}}'},
            "gone.safetensors cannot be read",
        ),
    ],
)
def test_a_folder_without_all_its_weights_is_refused(
    tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        folder_weights(tmp_path)
