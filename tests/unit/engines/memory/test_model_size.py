"""Weights by hand, and against what the models' makers publish."""

from __future__ import annotations

import pytest

from engines.families.common.registry import model_shape
from engines.megatron.spec import Parallel
from engines.memory.activations import NOTHING, attention_values
from engines.memory.model_size import ModelSize, size_of
from engines.memory.server_memory import ServerNeeds, token_bytes
from engines.memory.trainer_memory import rank_weights
from tests.parts.memory_table import known_sizes

pytestmark = pytest.mark.unit

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}


def small(family: str = "qwen3", **other: object) -> ModelSize:
    return size_of(model_shape({"model_type": family, **SMALL, **other}))


def test_a_small_models_weights() -> None:
    """Queries 8, keys 4. A layer's matrices: 8 x (8 + 4 + 4) + 8 x 8 + 3 x 8 x 16 = 576; its norms:
    2 x 8, and 2 x 4 of the heads. The embedding: 32 x 8 = 256, the last norm: 8."""
    size = small()
    assert (size.split_weights, size.whole_weights) == (2 * 576, 2 * 24)
    assert size.num_weights == 2 * 600 + 256 + 8
    assert small("llama").whole_weights == 2 * 16
    # The bias of queries, keys and values is split like their matrix.
    assert small("qwen2").split_weights == 2 * (576 + 8 + 4 + 4)
    # Four norms of hidden states. / None before its parts, and one over all query and key heads.
    assert (small("glm4").whole_weights, small("glm4").norms) == (2 * 32, 4)
    assert (small("gemma3_text").whole_weights, small("gemma3_text").norms) == (2 * 40, 2 * 4)
    assert (small("olmo2").num_weights, small("olmo2").norms) == (2 * (576 + 16 + 12) + 264, 2)
    assert small("phi3", tie_word_embeddings=False).num_weights == 2 * 592 + 2 * 256 + 8


def test_what_a_rank_holds_of_them() -> None:
    """576 / 2 + 24 = 312 a layer; the embedding's half is 128."""
    size = small()
    assert rank_weights(size, Parallel(tp=2), 0).all == 2 * 312 + 128 + 8
    # Tied, and on two stages: both hold the embedding.
    first, last = (rank_weights(size, Parallel(pp=2), stage).all for stage in (0, 1))
    assert (first, last) == (600 + 256, 600 + 256 + 8)
    untied = small(tie_word_embeddings=False)
    assert rank_weights(untied, Parallel(dp=4), 0).all == 2 * 600 + 2 * 256 + 8


def test_experts_are_shared_out_over_expert_parallel_ranks_as_well() -> None:
    size = ModelSize(
        *(2, 8, 8, 4, 4, 16, 32), is_tied=True, has_head_norms=False,
        split_weights=100, whole_weights=10, expert_weights=800, experts_per_token=2,
    )  # fmt: skip
    held = rank_weights(size, Parallel(tp=2, dp=4, ep=4), 0)
    assert (held.dense, held.experts) == (50 + 10 + 128 + 8, 100)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen3-0.6B", 0.596),
        ("Qwen3-1.7B", 1.721),
        ("Qwen3-4B", 4.022),
        ("Qwen3-8B", 8.191),
        ("Qwen3-14B", 14.768),
        ("Qwen3-32B", 32.762),
        ("Llama-3-8B", 8.030),
        ("Llama-3-70B", 70.554),
        ("Qwen3-30B-A3B", 30.532),
        ("GLM-4.5-Air", 106.85),
        ("GLM-4.5", 352.8),
    ],
)
def test_known_models_have_as_many_weights_as_their_folders_on_the_hub(
    name: str, billions: float
) -> None:
    """The GLMs' folders have a layer more, for multi-token prediction."""
    assert known_sizes()[name].num_weights / 1e9 == pytest.approx(billions, abs=6e-4 * billions)


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}


def test_latents_are_whole_on_every_rank_and_all_that_a_server_caches() -> None:
    """Published are 671 * 10^9 weights, of which a token passes 37 * 10^9, those of its embedding
    and its logits among them. Whole are what makes latents, (1536 + 576) x 7168, four norms,
    2 x 7168 + 1536 + 512, and of 58 layers the routers, 256 x 7168 + 256 (a bias is shared out
    like a matrix's rows in no layout)."""
    shape = model_shape(DEEPSEEK_V3)
    size = size_of(shape)
    assert size.num_weights == 671_026_419_200
    active = shape.num_matmul_params + 2 * 129280 * 7168
    assert active == pytest.approx(37e9, rel=0.02)
    norms = 2 * 7168 + 1536 + 512
    assert size.whole_weights == 61 * (2112 * 7168 + norms) + 58 * (256 * 7168 + 256)
    needs = ServerNeeds(8, 4096, 100_000, {}, 80 * 10**9)
    assert token_bytes(size, needs) == 61 * (512 + 64) * 2
    # Both latents twice, values of 128 heads; queries, keys and filled-up values of 192 numbers.
    kept = 2 * (1536 + 512) + 128 * 128 + 3 * 128 * 192
    assert attention_values(size, NOTHING, cp=1) == kept
