"""Models with gated delta nets: what config.json says of them, and what is refused."""

from __future__ import annotations

import pytest

from engines.families.common.registry import family_of, model_shape
from engines.megatron.options import check_layout
from engines.megatron.spec import Parallel
from infra.errors import InputError
from tests.parts.families import SIZES, all_fields

pytestmark = pytest.mark.unit
QWEN = {"model_type": "qwen3_5_text", **SIZES, **all_fields("qwen3_5_text")}


def test_qwen_as_hubs_write_it_and_as_transformers_writes_it() -> None:
    """Every fourth layer attends. Of heads of 16, 4 numbers are rotated: speeds 1 and 50 to the
    power of -1/2."""
    hub = {key: value for key, value in QWEN.items() if key != "layer_types"}
    hub |= {"full_attention_interval": 4, "attn_output_gate": True, "mamba_ssm_dtype": "float32"}
    first = model_shape(hub)
    assert first == model_shape(QWEN)
    assert first.delta is not None
    assert first.delta.layers == frozenset({0, 1, 2})
    assert (first.has_output_gate, first.num_attention_layers) == (True, 1)
    assert first.rope.inverse_frequencies(16) == pytest.approx([1.0, 50**-0.5])
    assert first.is_kept("mtp.layers.0.self_attn.q_proj.weight")
    assert not first.is_kept("model.visual.patch_embed.proj.weight")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"attn_output_gate": False}, "attn_output_gate False is not supported"),
        ({"linear_num_key_heads": 3}, r"linear_num_key_heads \(3\) must divide"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim must be a positive integer"),
        ({"layer_types": ["full_attention"]}, "layer_types of 1 layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "other than linear_attention and full"),
        ({"layer_types": ["linear_attention"] * 4}, "without a full_attention"),
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, "reads the interval alone"),
        ({"full_attention_interval": 2}, "reads the interval alone"),
        ({"partial_rotary_factor": 0.5}, "0.25 in rope_parameters, where SGLang does not"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid' is not supported"),
        ({"attention_bias": True}, "attention_bias is set"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.2}},
            "is not an even number",
        ),
    ],
)
def test_what_qwen_could_have_and_we_do_not_is_refused(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        model_shape(QWEN | wrong)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("qwen3_5", "it sees images; `tributary convert FOLDER NEW` writes its text model; suppor"),
        ("qwen3_5_moe", "delta nets are trained in dense models"),
        ("qwen3_5_moe_text", "delta nets are trained in dense models"),
        ("qwen3_next", "delta nets are trained in dense models"),
    ],
)
def test_relatives_that_are_not_trained_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(InputError, match=f"model_type '{name}' is not supported: {why}"):
        family_of({"model_type": name})


def test_delta_nets_are_split_by_heads_and_never_by_tokens() -> None:
    check_layout(QWEN, Parallel(tp=2, pp=2, dp=2), {})
    with pytest.raises(InputError, match="cp 2: ranks cannot share out a sequence's tokens"):
        check_layout(QWEN, Parallel(cp=2), {})
    odd = QWEN | {"linear_num_key_heads": 1}
    with pytest.raises(InputError, match=r"tp 2 does not divide .* key heads of delta nets \(1\)"):
        check_layout(odd, Parallel(tp=2), {})
