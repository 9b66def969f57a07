"""Rotation in fp32: the numbers, and what bf16 keeps of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.utils import counters

from engines.families.common.model_config import read_rope, usable_positions
from engines.families.common.registry import model_shape
from engines.megatron import kernels, rotary
from engines.megatron.rotary import Rotate, rotary_factors
from infra.errors import InputError
from tests.parts.families import SIZES

pytestmark = pytest.mark.unit

SPEEDS = torch.tensor([1.0, 0.01])


def test_a_pair_of_numbers_turns_by_its_angle() -> None:
    """Position 2: the pair (x0, x2) turns by 2 radians, (x1, x3) by 0.02."""
    cos, sin = rotary_factors(torch.tensor([2]), SPEEDS)
    out = Rotate.apply(torch.tensor([[[1.0, 1.0, 0.0, 3.0]]]), cos, sin)
    wanted = [
        math.cos(2),
        math.cos(0.02) - 3 * math.sin(0.02),
        math.sin(2),
        math.sin(0.02) + 3 * math.cos(0.02),
    ]
    assert out.flatten().tolist() == pytest.approx(wanted, abs=1e-6)


def test_in_pairs_of_neighbours_and_the_rest_of_a_head_stays() -> None:
    """Position 2, heads of six: the pair (x0, x1) turns by 2 radians, (x2, x3) by 0.02."""
    cos, sin = rotary_factors(torch.tensor([2]), SPEEDS, 6, in_pairs=True)
    out = Rotate.apply(torch.tensor([[[1.0, 0.0, 1.0, 3.0, 7.0, 8.0]]]), cos, sin, True)
    slow = [math.cos(0.02) - 3 * math.sin(0.02), math.sin(0.02) + 3 * math.cos(0.02)]
    wanted = [math.cos(2), math.sin(2), *slow, 7, 8]
    assert out.flatten().tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("factor", [4.0, 16.0])
def test_yarn_has_the_speeds_and_the_scale_of_transformers(factor: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 2048}
    parameters["rope_theta"] = 1e5
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=parameters)
    speeds, scale = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    rope = read_rope({"rope_parameters": parameters})
    assert rope.inverse_frequencies(64) == pytest.approx(speeds.tolist(), rel=1e-5)
    assert rope.scale == pytest.approx(scale)
    # 0.1 ln(factor) + 1: a rotation of length one is that long.
    cos, sin = rotary_factors(torch.tensor([3]), speeds, scale=rope.scale)
    assert (cos[0, 0, 0] ** 2 + sin[0, 0, 0] ** 2).sqrt().item() == pytest.approx(scale)


@pytest.mark.parametrize("kind", ["linear", "longrope"])
def test_every_speed_is_divided_as_in_transformers(kind: str) -> None:
    """By one factor, or each by its own: those of texts within the 64 positions of before."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    family, scaling = {
        "linear": ("llama", {"factor": 4.0}),
        "longrope": ("phi3", {"short_factor": [1.0, 1.5, 2.0], "long_factor": [9.0] * 3}),
    }[kind]
    stated = {"rope_type": kind, "rope_theta": 1e4, **scaling}
    written = {**SIZES, "original_max_position_embeddings": 64, "pad_token_id": 0}
    if kind == "longrope":
        written["partial_rotary_factor"] = 0.75
    config = AutoConfig.for_model(family, **written, rope_parameters=dict(stated))
    speeds, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    shape = model_shape({"model_type": family, **written, "rope_parameters": stated})
    assert shape.rope.inverse_frequencies(shape.rotary_dim) == pytest.approx(speeds.tolist())
    assert shape.rope.scale == pytest.approx(scale)
    assert shape.max_positions == {"linear": 256, "longrope": 64}[kind]
    # Four times as many positions: sqrt(1 + ln 4 / ln 64) = sqrt(4 / 3).
    assert scale == pytest.approx({"linear": 1, "longrope": (4 / 3) ** 0.5}[kind])


LONG = {
    "model_type": "phi3",
    **SIZES,
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3},
}


@pytest.mark.parametrize(
    ("changes", "scaling", "why"),
    [
        ({"original_max_position_embeddings": None}, {}, "needs original_max_position_embeddings"),
        (
            {"partial_rotary_factor": 1.0},
            {},
            "short_factor has 3 numbers, and heads of 8 numbers 4",
        ),
        (
            {"partial_rotary_factor": None},
            {"partial_rotary_factor": 0.75},
            "write it beside hidden_size",
        ),
        ({"sliding_window": 32}, {}, "sliding_window is 32, below"),
        ({}, {"factor": 2.0}, "factor 2.0 of rope type 'longrope' is not supported, only 4"),
        ({}, {"attention_factor": 1.2}, "attention_factor of rope type 'longrope'"),
        ({}, {"short_mscale": 1.2}, "short_mscale of rope type 'longrope'"),
        ({}, {"long_factor": None}, "'longrope' lacks long_factor"),
        ({}, {"short_factor": 1.0}, "short_factor of rope type 'longrope' must be a list"),
        ({}, {"short_factor": [1.0, 0.0, 1.0]}, "short_factor must be a finite number above 0"),
    ],
)
def test_a_long_rope_that_engines_would_read_differently_is_refused(
    changes: dict[str, object], scaling: dict[str, object], why: str
) -> None:
    assert model_shape(LONG).max_positions == usable_positions(LONG) == 64
    with pytest.raises(InputError, match=why):
        model_shape({**LONG, "rope_scaling": LONG["rope_scaling"] | scaling, **changes})


STRETCHED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def test_two_numbers_of_positions_of_before_are_refused() -> None:
    """transformers takes the outer one where the other stands in `rope_scaling`, not where it
    stands in `rope_parameters`."""
    outer = {"original_max_position_embeddings": 32}
    for spelling in ("rope_scaling", "rope_parameters"):
        with pytest.raises(InputError, match="is 32, and 64 among the settings of rope"):
            read_rope({spelling: STRETCHED} | outer)
        same = {spelling: STRETCHED | outer} | outer
        assert read_rope(same) == read_rope({spelling: STRETCHED | outer})


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_a_scaling_that_no_server_reads_of_phi_is_refused(kind: str) -> None:
    """To transformers its `yarn` is `longrope`, which has other speeds and needs other fields."""
    from transformers import AutoConfig

    scaling = STRETCHED | {"rope_type": kind, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    with pytest.raises(InputError, match=f"'{kind}' is not supported, only default and long"):
        model_shape({"model_type": "phi3", **SIZES, "rope_scaling": scaling})
    with pytest.raises(Exception, match="longrope"):
        AutoConfig.for_model("phi3", **SIZES, pad_token_id=None, rope_scaling=scaling)


@pytest.mark.parametrize("in_pairs", [False, True])
def test_the_gradient_turns_back(in_pairs: bool) -> None:
    cos, sin = rotary_factors(torch.tensor([5, 9]), SPEEDS, in_pairs=in_pairs)
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, requires_grad=True)
    upstream = torch.randn(2, 3, 4)
    (grad,) = torch.autograd.grad(Rotate.apply(x, cos, sin, in_pairs), x, upstream)
    assert torch.allclose(Rotate.apply(grad, cos, sin, in_pairs), upstream, atol=1e-6)


def test_in_bf16_only_the_result_is_rounded() -> None:
    """Half a unit in the last place, 2**-9 of the number; bf16 factors would err three times."""
    positions = torch.arange(0, 30_000, 997)
    speeds = 10_000.0 ** -(torch.arange(32) / 32)
    factors = rotary_factors(positions, speeds)
    torch.manual_seed(0)
    x = torch.randn(len(positions), 4, 64).bfloat16()
    exact = Rotate.apply(x.float(), *factors)
    ours = Rotate.apply(x, *factors)
    assert ours.dtype is torch.bfloat16
    assert torch.equal(ours, exact.bfloat16())
    assert ((ours.float() - exact).abs() <= exact.abs() * 2**-8 + 1e-30).all()


def test_the_gradient_in_bf16_has_the_dtype_of_its_input() -> None:
    factors = rotary_factors(torch.tensor([3]), SPEEDS)
    x = torch.ones(1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    Rotate.apply(x, *factors).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.bfloat16


@pytest.mark.parametrize("in_pairs", [False, True])
@pytest.mark.parametrize("kept", [0, 2])
def test_the_one_that_is_compiled_computes_the_same(in_pairs: bool, kept: int) -> None:
    for tokens in (7, 1):
        positions = torch.arange(tokens)
        cos, sin = rotary_factors(positions, SPEEDS, 4 + kept, in_pairs=in_pairs)
        turned = torch.randn(tokens, 3, 4 + kept)
        plain = rotary._rotated(turned, cos, sin, in_pairs)
        torch.testing.assert_close(
            rotary._rotated_at_once(turned, cos, sin, in_pairs), plain, atol=1e-6, rtol=0
        )


def test_packs_of_other_numbers_of_tokens_use_what_was_compiled() -> None:
    kernels.choose("fused")
    before = counters["stats"]["unique_graphs"]
    try:
        for tokens in (70, 9, 300):
            cos, sin = rotary_factors(torch.arange(tokens), SPEEDS)
            turned = torch.randn(tokens, 2, 4)
            fused = Rotate.apply(turned, cos, sin)
            torch.testing.assert_close(
                fused, rotary._rotated(turned, cos, sin, False), atol=1e-6, rtol=0
            )
    finally:
        kernels.choose("plain")
    assert counters["stats"]["unique_graphs"] == before + 1
