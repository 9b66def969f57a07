"""Whole tensors from the shards of tensor-parallel ranks: the inverse of how ranks load them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.families.common.registry import model_shape
from engines.families.common.tensors import HfTensor
from engines.megatron.hf.layout import MappedWeight, ServedWeight, _fuse
from engines.megatron.parallel import Layout
from engines.megatron.spec import Parallel
from tests.parts.families import SIZES

pytestmark = pytest.mark.unit

QKV = ("queries", "keys", "keys")
CASES: dict[str, tuple[list[HfTensor], list[tuple[int, ...]], int | None]] = {
    "attention's three": (
        [
            HfTensor(f"{part}_proj.weight", (rows,), "hidden")
            for part, rows in zip("qkv", QKV, strict=True)
        ],
        [(64, 32), (32, 32), (32, 32)],
        0,
    ),
    "their biases": (
        [HfTensor(f"{part}_proj.bias", (rows,)) for part, rows in zip("qkv", QKV, strict=True)],
        [(64,), (32,), (32,)],
        0,
    ),
    "attention's three in one": ([HfTensor("qkv_proj.weight", QKV, "hidden")], [(128, 32)], 0),
    "gate and up": (
        [HfTensor(f"{part}_proj.weight", ("ffn",), "hidden") for part in ("gate", "up")],
        [(48, 32), (48, 32)],
        0,
    ),
    "both in one": ([HfTensor("gate_up_proj.weight", ("ffn", "ffn"), "hidden")], [(96, 32)], 0),
    "split in rows": ([HfTensor("embed_tokens.weight", ("vocab",), "hidden")], [(96, 32)], 0),
    "split in columns": ([HfTensor("o_proj.weight", ("hidden",), "queries")], [(32, 64)], 1),
    "not split": ([HfTensor("norm.weight", ("hidden",))], [(32,)], None),
    "a value head": ([HfTensor("score.weight", ("value",), "hidden")], [(1, 32)], None),
}


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_shards_make_the_tensors_that_they_were_cut_from(case: str, tp: int) -> None:
    named, sizes, split_dim = CASES[case]
    config: dict[str, Any] = {**SIZES, "model_type": "qwen3", "head_dim": 16}
    shape = model_shape(config)
    layout = Layout(Parallel(tp=tp), 0, 0, 0, 0, 0)
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn(size, generator=draw) for size in sizes]
    dim = split_dim if tp > 1 else None

    def weight(param: Tensor) -> MappedWeight:
        return MappedWeight(param, tuple(named), dim)

    layouts = [replace(layout, tp_rank=rank) for rank in range(tp)]
    shards = [_fuse(weight(tensors[0]), tensors, shape, each) for each in layouts]
    served = ServedWeight(weight(shards[0]), shape, Parallel(tp=tp))
    assert [size for _, size in served.tensors] == sizes
    whole = [torch.full(size, torch.nan) for size in sizes]
    for index, shard in enumerate(shards[: served.num_shards]):
        served.place(shard, index, whole)
    assert all(torch.equal(a, b) for a, b in zip(whole, tensors, strict=True))
