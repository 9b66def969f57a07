"""FP8 in blocks: the format by a reference that goes number by number, what servers get of it, and
which models have it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engines.families.common.family import ModelShape
from engines.families.common.registry import model_shape
from engines.weights.buckets import OwnMemory, TrainedWeights
from engines.weights.fp8_blocks import check_fp8, dequantised, in_fp8, quantised, scales_size
from infra.errors import InputError
from tests.parts.families import EXAMPLES, SIZES
from tests.parts.whole_weights import WholeTensor

pytestmark = pytest.mark.unit

E4M3 = sorted(
    {0.0}
    | {mantissa * 2.0**-9 for mantissa in range(8)}
    | {(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)}
)
"""all numbers of the format from 0 on, by its definition: 4 bits of exponent, 3 of mantissa"""


def matrix(rows: int, columns: int) -> Tensor:
    """With blocks of very different size."""
    torch.manual_seed(rows)
    numbers = torch.randn(rows, columns)
    numbers[:128] *= 1e-4
    numbers[:, 128:] *= 50
    return numbers


@pytest.mark.parametrize("size", [(256, 384), (200, 130), (64, 1)])
def test_each_number_is_the_nearest_of_its_block(size: tuple[int, int]) -> None:
    weight = matrix(*size)
    numbers, scales = quantised(weight)
    assert (numbers.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert tuple(scales.shape) == (math.ceil(size[0] / 128), math.ceil(size[1] / 128))
    back = dequantised(numbers, scales, (128, 128), torch.float32)
    known = torch.tensor([-number for number in E4M3[:0:-1]] + E4M3)
    for i, j in torch.cartesian_prod(*map(torch.arange, scales.shape)).tolist():
        block = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
        own = weight[block]
        assert scales[i, j] == own.abs().max() / 448
        near = (own.flatten()[:, None] - known * scales[i, j]).abs().min(1).values
        off = (own - back[block]).abs()
        assert torch.allclose(off.flatten(), near, rtol=1e-3, atol=1e-6 * own.abs().max().item())
        assert (off <= own.abs() / 16 + scales[i, j] / 1024 + 1e-12).all()


def test_matrices_without_a_number_and_with_damaged_ones() -> None:
    numbers, scales = quantised(torch.zeros(4, 4))
    assert dequantised(numbers, scales, (128, 128)).eq(0).all()
    assert scales.isfinite().all()
    tiny, scale = quantised(torch.full((2, 2), 1e-44))
    assert tiny.float().isfinite().all()
    assert scale.gt(0).all()
    damaged = torch.ones(256, 128)
    damaged[0, 0] = torch.nan
    back = dequantised(*quantised(damaged), (128, 128), torch.float32)
    assert back[0, 0].isnan()
    assert back[128:].eq(1).all(), "another block is not touched"


def test_a_large_matrix_is_quantised_in_strips_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = matrix(600, 256)
    whole = quantised(weight)
    monkeypatch.setattr("engines.weights.fp8_blocks._AT_ONCE", 256 * 256)
    cut = quantised(weight)
    assert torch.equal(whole[0].view(torch.uint8), cut[0].view(torch.uint8))
    assert torch.equal(whole[1], cut[1])


LAYER = "model.layers.0."
TENSORS = {
    "model.embed_tokens.weight": (300, 200),
    LAYER + "input_layernorm.weight": (200,),
    LAYER + "self_attn.q_proj.weight": (256, 200),
    LAYER + "mlp.gate.weight": (8, 200),
    LAYER + "mlp.experts.3.up_proj.weight": (130, 200),
    "lm_head.weight": (300, 200),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buckets_have_the_layers_matrices_as_fp8_and_their_scales_last(dtype: torch.dtype) -> None:
    """And the very bits that a server makes of the same folder."""
    torch.manual_seed(0)
    tensors = {name: torch.randn(size).to(dtype) for name, size in TENSORS.items()}
    whole = [WholeTensor(name, tensor) for name, tensor in tensors.items()]
    trained = TrainedWeights(whole, bucket_bytes=100_000, in_fp8=True)
    found: dict[str, Tensor] = {}
    sizes: list[int] = []
    for bucket in trained.buckets(OwnMemory()):
        assert bucket is not None
        assert len({tensor.dtype for _, tensor in bucket.tensors}) == 1
        begin = bucket.flat.data_ptr()
        places = [tensor.data_ptr() - begin for _, tensor in bucket.tensors]
        assert places == [sum(t.nbytes for _, t in bucket.tensors[:i]) for i in range(len(places))]
        sizes.append(bucket.flat.nbytes)
        found |= {name: tensor.clone() for name, tensor in bucket.tensors}
    assert sizes == trained.bucket_sizes()
    expected = dict(in_fp8(tensors.items(), torch.device("cpu"), dtype))
    assert {n: t.dtype for n, t in found.items()} == {n: t.dtype for n, t in expected.items()}
    for name, tensor in expected.items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name
    quantised_names = {name for name in TENSORS if "_proj" in name}
    assert {n for n, t in found.items() if t.element_size() == 1} == quantised_names
    assert list(found)[-2:] == [f"{name}_scale_inv" for name in TENSORS if "_proj" in name]
    assert all(
        tuple(found[f"{name}_scale_inv"].shape) == scales_size(TENSORS[name])
        for name in quantised_names
    )


def test_a_folder_that_is_fp8_already_stays_as_it_is() -> None:
    numbers, scales = quantised(torch.ones(128, 128))
    name = LAYER + "mlp.down_proj.weight"
    stored = {name: numbers, f"{name}_scale_inv": scales}
    assert dict(in_fp8(stored.items(), torch.device("cpu"), torch.bfloat16)) == stored


def shape_of(family: str, **sizes: int) -> ModelShape:
    config = {**SIZES, **EXAMPLES[family].config, **EXAMPLES[family].experts}
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    return model_shape({"model_type": family, **config, **wide, **sizes})


@pytest.mark.parametrize(
    ("family", "sizes", "tp", "said"),
    [
        ("qwen3", {}, 1, None),
        # Two KV heads of 64 are one block; of two ranks each has half of one.
        ("qwen3", {}, 2, "k_proj.weight: a server's rank has 64 of its rows or columns"),
        ("qwen3", {"head_dim": 128}, 2, None),
        # With more ranks than KV heads each has a head, and of queries 512 / 4.
        ("qwen3", {"head_dim": 128}, 4, None),
        ("qwen3", {"head_dim": 128, "intermediate_size": 768}, 4, "gate_proj.weight: .* has 192"),
        ("qwen3", {"hidden_size": 192}, 1, "q_proj.weight: a server's rank has 192"),
        ("qwen3_moe", {}, 1, "experts.0.gate_proj.weight: a server's rank has 24"),
        ("qwen3_moe", {"moe_intermediate_size": 128}, 1, None),
        ("qwen3_moe", {"moe_intermediate_size": 128, "head_dim": 128}, 2, "experts.*has 64"),
        ("deepseek_v3", {"head_dim": 4}, 1, "latent attention"),
        ("qwen3_5_text", {}, 1, "delta nets"),
        ("gpt_oss", {"head_dim": 128}, 1, "experts that lie in one tensor"),
    ],
)
def test_a_model_needs_whole_blocks_on_each_rank(
    family: str, sizes: dict[str, int], tp: int, said: str | None
) -> None:
    shape = shape_of(family, **sizes)
    if said is None:
        check_fp8(shape, tp)
        return
    with pytest.raises(InputError, match=said):
        check_fp8(shape, tp)
