"""Every family keeps the contract; what needs no engine."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from engines.families.common.family import Family, ModelShape, Window, dense_flops
from engines.families.common.model_config import Rope
from engines.families.common.registry import (
    all_families,
    family_module,
    family_names,
    family_of,
    model_shape,
)
from infra.errors import InputError
from infra.home import SOURCE_ROOT
from tests.parts.families import EXAMPLES, SIZES, all_fields

pytestmark = pytest.mark.unit
FAMILIES = all_families()
MIXTURES = [name for name in FAMILIES if EXAMPLES[name].experts]


def shape_of(name: str) -> ModelShape:
    return model_shape({"model_type": name, **SIZES, **all_fields(name)})


def test_every_family_has_an_example_and_a_row_in_the_docs() -> None:
    page = (
        (SOURCE_ROOT / "docs/own-model.md")
        .read_text()
        .partition("## Families")[2]
        .partition("\n## ")[0]
    )
    assert set(EXAMPLES) == set(family_names())
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(family_names())


def test_a_model_of_no_family_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError) as refused:
        family_of({"model_type": "mamba"})
    assert "model_type 'mamba' is not supported" in str(refused.value)
    assert ", ".join(family_names()) in str(refused.value)


@pytest.mark.parametrize(
    "name", [None, "common", "__init__", "../qwen3", "qwen3.FAMILY", ["llama"]]
)
def test_only_a_family_is_found_by_its_name(name: object) -> None:
    with pytest.raises(InputError, match="is not supported"):
        family_module({"model_type": name})


@pytest.mark.parametrize("name", FAMILIES)
def test_flops_are_those_worked_out_by_hand(name: str) -> None:
    shape = shape_of(name)
    found = shape.family.flops(shape, np.array([3, 1]), np.array([2, 0]))
    assert found[0] == EXAMPLES[name].flops
    assert found[1] < found[0] / 3


@pytest.mark.parametrize("name", FAMILIES)
def test_each_tensor_belongs_to_one_megatron_parameter(name: str) -> None:
    shape = replace(shape_of(name), is_tied=False)
    table = shape.family.tensors
    parameters = [*table.top]
    for i in range(SIZES["num_hidden_layers"]):
        own = shape.parameters_of(i)
        parameters += [f"decoder.layers.{i}.{p}" for p in own]
        experts = shape.mixture.num_experts if shape.mixture and shape.is_routed(i) else 0
        for number in range(experts):
            of_expert = f"decoder.layers.{i}.mlp.experts.local_experts.{number}"
            parameters += [f"{of_expert}.{p}" for p in table.expert]
    held = [tensor.name for p in parameters for tensor in table.of_parameter(p)]
    assert len(held) == len(set(held))
    assert set(held) == {tensor.name for tensor in shape.expected_tensors()}
    with pytest.raises(KeyError, match="no HF name"):
        table.of_parameter("decoder.layers.0.mlp.gate.weight")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_later_pipeline_stage_holds_later_layers(name: str) -> None:
    table = FAMILIES[name].tensors
    stored = table.of_parameter("decoder.layers.1.self_attention.linear_proj.weight", first_layer=2)
    assert [tensor.name for tensor in stored] == ["model.layers.3.self_attn.o_proj.weight"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tied_model_stores_no_output_layer(name: str) -> None:
    shape = replace(shape_of(name), is_tied=False)
    stored = {tensor.name for tensor in shape.expected_tensors()}
    tied = {tensor.name for tensor in replace(shape, is_tied=True).expected_tensors()}
    assert stored - tied == {"lm_head.weight"}
    assert tied < stored


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", ["sliding_attention", "linear_attention"])
def test_what_no_family_can_do_is_refused(name: str, kind: str) -> None:
    config = {"model_type": name, **SIZES, **all_fields(name)}
    for wrong in (
        {"layer_types": [kind]},
        {"hidden_act": "gelu"},
        {"rope_is_neox_style": False},
        {"bias": True},
        {"quantization_config": {"quant_method": "fp8"}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    ):
        with pytest.raises(InputError, match=r"not supported|cannot be trained"):
            model_shape(config | wrong)


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        *[(name, {"tie_word_embeddings": True}, "lm_head.weight") for name in MIXTURES],
        ("gemma3_text", {"tie_word_embeddings": False}, "must be true"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "a layer without experts is not supported"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step must be 1"),
    ],
)
def test_what_sglang_would_leave_as_the_memory_was_is_refused(
    name: str, wrong: dict[str, object], why: str
) -> None:
    """Its classes of these families make parts of their own where config.json says that there are
    none; nothing is sent for them, and answers are NaN or noise."""
    with pytest.raises(InputError, match=why):
        model_shape({"model_type": name, **SIZES, **all_fields(name), **wrong})


GEMMA = {
    "model_type": "gemma3_text",
    **SIZES,
    "num_hidden_layers": 7,
    "head_dim": 16,
    "sliding_window": 9,
}


def test_windows_of_gemma_as_hubs_write_them_and_as_transformers_writes_them() -> None:
    """Sixth layers see all. Speeds of heads of 16: the base to the power of -1/8, and -1/8 for each
    more; those of layers that see all are an eighth of that."""
    hub = {"rope_theta": 256.0, "rope_local_base_freq": 16.0, "sliding_window_pattern": 6}
    scaled = {"rope_type": "linear", "factor": 8.0}
    written = {
        "rope_parameters": {
            "full_attention": {"rope_theta": 256.0, **scaled},
            "sliding_attention": {"rope_theta": 16.0},
        },
        "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
    }
    first = model_shape({**GEMMA, **hub, "rope_scaling": scaled})
    assert first == model_shape({**GEMMA, **written})
    assert first.window is not None
    assert (first.window.size, first.window.layers) == (9, frozenset({0, 1, 2, 3, 4, 6}))
    assert first.rope.inverse_frequencies(16)[:3] == [1 / 8, 1 / 16, 1 / 32]
    assert first.window.rope.inverse_frequencies(16)[:3] == pytest.approx([1, 0.5**0.5, 0.5])
    plain = model_shape(GEMMA)
    assert (plain.rope, plain.is_tied) == (Rope(1e6), True)
    assert plain.window == replace(first.window, rope=Rope(1e4))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"final_logit_softcapping": 30.0}, "a soft cap of logits is not supported"),
        ({"attn_logit_softcapping": 50.0}, "a soft cap of attention scores is not supported"),
        ({"use_bidirectional_attention": True}, "attention to later tokens"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types of 1 layers"),
        ({"sliding_window": None}, "sliding_window must be a positive integer"),
        ({"sliding_window": 1}, "sliding_window 1 is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "'llama3' is not supported, only default and"),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "write it as rope_scaling.rope_type"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "'linear' is not supported, only default$",
        ),
    ],
)
def test_what_gemma_could_have_and_we_do_not_is_refused(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        model_shape(GEMMA | wrong)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"rope_interleave": False}, "rope_interleave false is not supported"),
        ({"num_key_value_heads": 2}, "must be num_attention_heads"),
        ({"v_head_dim": 16}, "v_head_dim .16. not above"),
        ({"moe_layer_freq": None}, "moe_layer_freq is None, and only 1"),
        ({"topk_method": "group_limited_greedy"}, "only 'noaux_tc' is supported"),
        ({"scoring_func": "softmax"}, "only 'sigmoid' is supported"),
        ({"n_shared_experts": 0}, "n_shared_experts must be a positive integer"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ({"index_topk": 2048}, "sparse attention of DeepSeek-V3.2 is not supported"),
        ({"attention_bias": True}, "attention_bias is set"),
        ({"llama_4_scaling": {"beta": 0.5}}, "scale of queries by their position"),
        ({"kv_lora_rank": None}, "kv_lora_rank must be a positive integer"),
        ({"topk_group": 2, "n_group": 4}, "must be twice topk_group"),
        ({"num_experts_per_tok": 4}, "must be twice topk_group"),
        ({"first_k_dense_replace": 4}, "no layer has experts"),
    ],
)
def test_what_engines_would_compute_unlike_each_other_of_latent_attention_is_refused(
    wrong: dict[str, object], why: str
) -> None:
    """Megatron-core ranks groups of experts by other numbers of experts, say, without a word."""
    name = "deepseek_v3"
    with pytest.raises(InputError, match=why):
        model_shape({"model_type": name, **SIZES, **all_fields(name), **wrong})


PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma-3-1b-it": {
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "Moonlight-16B-A3B": {
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 11264,
        "kv_lora_rank": 512,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.446,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
}


@pytest.mark.parametrize(
    ("name", "weights", "norm_eps", "theta"),
    [
        ("gemma-3-1b-it", 999_885_952, 1e-6, 1e6),
        ("Moonlight-16B-A3B", 15_960_110_208, 1e-5, 5e4),
    ],
)
def test_published_models_have_as_many_weights_as_their_folders(
    name: str, weights: int, norm_eps: float, theta: float
) -> None:
    shape = model_shape(PUBLISHED[name])
    assert sum(prod(t.size(shape.axes)) for t in shape.expected_tensors()) == weights
    assert (shape.norm_eps, shape.rope) == (norm_eps, Rope(theta))


YARN = {
    "rope_type": "yarn",
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}


def deepseek(**rope: object) -> ModelShape:
    fields = {**SIZES, **all_fields("deepseek_v3"), "qk_rope_head_dim": 64}
    return model_shape({"model_type": "deepseek_v3", **fields, "rope_parameters": YARN | rope})


def test_yarn_of_latent_attention_by_hand() -> None:
    """DeepSeek-V3's 32 rotations: 64 ln(4096 / (32 x 2 pi)) / (2 ln 10000) = 10.47: those up to the
    10th are kept. 64 ln(4096 / (2 pi)) / (2 ln 10000) = 22.5: from the 23rd on all are slowed by
    40. The 16th is (16 - 10) / (23 - 10) slowed. Scores are multiplied by (0.1 ln 40 + 1) squared,
    and cosines by nothing.
    """
    shape = deepseek()
    speeds = shape.rope.inverse_frequencies(64)
    plain = [10000 ** (-i / 32) for i in range(32)]
    assert speeds[:11] == pytest.approx(plain[:11], rel=1e-12)
    assert speeds[23:] == pytest.approx([x / 40 for x in plain[23:]], rel=1e-12)
    assert speeds[16] == pytest.approx(plain[16] * (7 / 13 + 6 / 13 / 40), rel=1e-12)
    assert shape.rope.scale == 1.0
    assert shape.latent is not None
    assert shape.latent.scale == pytest.approx(1.36888794**2 / 72**0.5, rel=1e-8)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mscale": 0.7}, "must be equal"),
        ({"mscale": None}, "lacks mscale"),
        ({"factor": None}, "lacks factor"),
        ({"attention_factor": 1.0}, "with attention_factor is not supported"),
        ({"truncate": False}, "with truncate is not supported"),
        ({"beta_fast": 0}, "beta_fast must be a finite number above 0"),
    ],
)
def test_yarn_that_engines_read_unlike_each_other_is_refused(
    changes: dict[str, object], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        deepseek(**changes)


def dense(**sizes: int) -> ModelShape:
    config = {
        "model_type": "llama",
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 10,
    }
    return model_shape(config | sizes)


def test_weights_logits_and_attention_by_hand() -> None:
    # A layer: queries 4 x 4, keys and values 2 x 4 x 2, output 4 x 4, feed-forward 3 x 4 x 8: 144
    # weights; two layers 288. Three tokens: 864. Logits of two rows: 2 x 4 x 10 = 80. Attention:
    # 2 layers x 2 heads x 2 wide x 3 squared = 72. Six times 864 + 80 + 72.
    found = dense_flops(dense(), np.array([3, 1]), np.array([2, 0]))
    assert found.tolist() == [6 * (864 + 80 + 72), 6 * (288 + 8)]


def test_a_critic_has_one_output_a_token() -> None:
    critic = replace(dense(), has_value_head=True)
    (found,) = dense_flops(critic, np.array([3]), np.array([2])).tolist()
    assert found == 6 * (864 + 2 * 4 + 72)


def test_attention_of_a_long_sequence_passes_no_integer_bound() -> None:
    large = dense(num_hidden_layers=128, num_attention_heads=128, hidden_size=16384)
    lengths = np.array([10_000_000])
    (found,) = dense_flops(large, lengths, np.array([0])).tolist()
    attention = 6 * 128 * 16384 * 10_000_000**2
    assert attention > 2**63
    assert found == pytest.approx(attention + 6 * large.num_matmul_params * 10_000_000)


def test_of_a_window_only_what_its_tokens_see_is_counted() -> None:
    # Three tokens, of which each sees two: 9 - 1 in place of 9, in one of the two layers.
    window = Window(2, frozenset({1}), Rope(10000.0))
    found = dense_flops(replace(dense(), window=window), np.array([3, 1]), np.array([2, 0]))
    assert found.tolist() == [6 * (864 + 80 + 2 * 2 * (9 + 8)), 6 * (288 + 2 * 2 * 2)]


def test_a_family_may_count_its_own_flops() -> None:
    """Of a mixture of experts, say, only those that a token passes."""

    def half(*given: object) -> object:
        return dense_flops(*given) / 2

    family: Family = replace(FAMILIES["llama"], flops=half)
    shape = replace(dense(), family=family)
    (found,) = shape.family.flops(shape, np.array([3]), np.array([2])).tolist()
    assert found == 3 * (864 + 80 + 72)
