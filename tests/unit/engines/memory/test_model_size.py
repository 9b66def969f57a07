"""Weights by hand, and against what the models' makers publish."""

from __future__ import annotations

import pytest

from engines.families.common.registry import model_shape
from engines.megatron.spec import Parallel
from engines.memory.model_size import ModelSize, size_of
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
