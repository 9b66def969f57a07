"""A rank's memory by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines.families.common.registry import model_shape
from engines.megatron.spec import Lora, Parallel
from engines.memory.activations import (
    NOTHING,
    Recompute,
    kept_values,
    loss_memory,
    micro_batches_in_flight,
    recompute_of,
)
from engines.memory.model_size import size_of
from engines.memory.trainer_memory import (
    RankWeights,
    TrainerMemory,
    TrainerNeeds,
    adapter_weights,
    optimizer_state,
    rank_weights,
    trainer_memory,
)
from tests.parts.families import hf_config
from tests.unit.engines.megatron.test_megatron_options import QWEN3
from tests.unit.engines.memory.test_model_size import small

pytestmark = pytest.mark.unit

FULL = Recompute(method="uniform", num_layers=1)


def memory(tokens: int = 1, precision: str = "bf16", **layout: int) -> TrainerMemory:
    return trainer_memory(small(), TrainerNeeds(Parallel(**layout), precision, tokens))


def test_bf16_takes_eighteen_bytes_a_weight_and_fp32_sixteen() -> None:
    """1464 weights. bf16: 2, a gradient of 4, moments of 8 and a copy of 4; fp32 is that copy."""
    half, full = memory(), memory(precision="fp32")
    assert (half.weights, half.gradients, half.optimizer) == (2 * 1464, 4 * 1464, 12 * 1464)
    assert (full.weights, full.gradients, full.optimizer) == (4 * 1464, 4 * 1464, 8 * 1464)
    assert half.state == 18 * 1464
    assert half.total == half.state + half.activations + half.runtime


@pytest.mark.parametrize(
    ("options", "gradient", "optimizer"),
    [
        ({}, 4, 12),
        ({"grad_reduce_in_fp32": False}, 2, 12),
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.75}, 4, 3),
        ({"optimizer_offload_fraction": 0.75}, 4, 12),
    ],
)
def test_megatrons_options_change_what_is_kept_of_a_weight(
    options: dict[str, Any], gradient: int, optimizer: int
) -> None:
    state = optimizer_state("bf16", options)
    held = trainer_memory(small(), TrainerNeeds(Parallel(), "bf16", 1, state=state))
    assert (held.gradients, held.optimizer) == (gradient * 1464, optimizer * 1464)


def test_the_optimizer_is_shared_out_over_data_and_context_parallel_ranks() -> None:
    assert memory(dp=2).optimizer == memory(cp=2).optimizer == 6 * 1464
    assert memory(dp=2, cp=2).optimizer == 3 * 1464
    assert memory(dp=4).weights == 2 * 1464


def test_experts_are_replicated_less_often() -> None:
    """8 replicas of what is dense; experts lie on 4 of those each, so 2 of them."""
    size = replace(small(), expert_weights=1600)
    needs = TrainerNeeds(Parallel(dp=8, ep=4), "bf16", 1)
    held = trainer_memory(size, needs)
    assert held.weights == 2 * (1464 + 400)
    assert held.optimizer == 12 * 1464 // 8 + 12 * 400 // 2


def test_a_frozen_model_costs_as_much_as_the_weights() -> None:
    needs = TrainerNeeds(Parallel(), "bf16", 1, copies=2)
    assert trainer_memory(small(), needs).copies == 2 * 2 * 1464


def test_teachers_cost_one_set_of_weights_while_they_score_however_many_there_are() -> None:
    alone, taught = (
        trainer_memory(small(), TrainerNeeds(Parallel(), "bf16", 1, has_teachers=there))
        for there in (False, True)
    )
    assert taught.copies == 0
    assert 2 * 1464 <= taught.activations <= alone.activations + 2 * 1464


def test_likeliest_tokens_cost_eight_bytes_each_at_every_place_of_a_step() -> None:
    needs = TrainerNeeds(Parallel(), "bf16", 1, has_teachers=True, num_top=64, places=1000)
    assert trainer_memory(small(), needs).copies == 8 * 64 * 1000


@pytest.mark.parametrize(("layout", "added"), [({}, 65536), ({"tp": 2}, 47104)])
def test_only_adapters_have_gradients_and_an_optimizer(layout: dict[str, int], added: int) -> None:
    """A layer of rank 8: q and o 128 + 128, k and v 128 + 64, gate, up and down 128 + 256; together
    2048 x 8. With tp 2 the sides that ranks share out are halved: q and o 64 + 128, k and v
    32 + 128, the others 128 + 128; together 1472 x 8."""
    size = size_of(model_shape(QWEN3))
    needs = TrainerNeeds(Parallel(**layout), "bf16", 1, copies=1, lora=Lora(rank=8))
    memory = trainer_memory(size, needs)
    assert memory.weights == 2 * (rank_weights(size, needs.layout, 0).all + added)
    assert (memory.gradients, memory.optimizer) == (4 * added, 12 * added)
    assert memory.copies == memory.weights - 2 * added
    some = replace(needs, lora=Lora(rank=8, targets=["q_proj"]))
    assert trainer_memory(size, some).gradients == 4 * 4 * 8 * (128 + 128 // needs.layout.tp)


@pytest.mark.parametrize(
    ("layout", "dense", "experts"),
    [
        ({}, 2072, 4032),
        ({"dp": 2, "ep": 2}, 2072, 2016),
        ({"tp": 2}, 1604, 3168),
        ({"tp": 2, "ep": 2, "etp": 1}, 1604, 2016),
    ],
)
def test_each_expert_has_adapters_and_a_router_none(
    layout: dict[str, int], dense: int, experts: int
) -> None:
    """Rows and columns, which rank 1 has once each. Attention in four layers: latents 56 + 56, what
    is made of them 48 + 24 and 64 + 20, outputs 32 + 32; a dense feed-forward 3 x (48 + 32); three
    shared experts of 3 x (24 + 32) each: 2072. Three layers of 8 such experts: 4032. Ranks of tp
    share out 48, 64 and one 32 of attention, the feed-forward's 48 and the experts' 24."""
    size = size_of(model_shape(hf_config("deepseek_v3").to_dict()))
    needs = TrainerNeeds(Parallel(**layout), "bf16", 1, lora=Lora(rank=1))
    assert adapter_weights(size, needs) == RankWeights(dense, experts)
    replicas = layout.get("dp", 1)
    assert trainer_memory(size, needs).optimizer == 12 * (dense // replicas + experts)


def test_a_critic_has_a_number_in_place_of_logits() -> None:
    """1464 and the head, 8 + 1; the loss needs no tiles of a vocabulary."""
    critic = replace(small(), has_value_head=True, is_tied=False)
    assert critic.num_weights == 1464 + 9
    held = trainer_memory(critic, TrainerNeeds(Parallel(), "bf16", 64))
    assert held.weights == 2 * 1473
    assert held.activations < memory(tokens=64).activations


def test_what_a_layer_keeps_of_a_token() -> None:
    """Hidden 8, queries 8, keys 4, feed-forward 16. Norms 2 x 8 and their outputs 2 x 8; norms of
    heads 8 + 4; queries, keys, and queries, keys, values in one: 8 + 4 + 16; the attention's output
    8; the feed-forward 5 x 16."""
    attention = 12 + 28
    assert kept_values(small(), NOTHING, 1) == 16 + 16 + attention + 8 + 80
    assert kept_values(small("llama"), NOTHING, 1) == 16 + 16 + 28 + 8 + 80


def test_what_is_computed_again_is_not_kept() -> None:
    """The norm's output stays, as it is the feed-forward's input."""
    options = {"recompute_granularity": "selective", "recompute_modules": ["mlp"]}
    assert kept_values(small(), recompute_of(options), 1) == 16 + 16 + 40 + 8


def test_context_parallel_ranks_keep_keys_and_values_of_others() -> None:
    """A rank of two has chunks 0 and 3 of 4: of 2 chunks of queries, 1 + 4 of keys and values."""
    assert kept_values(small(), NOTHING, 2) == 16 + 16 + 12 + 8 + 5 * (4 + 4) / 2 + 8 + 80


@pytest.mark.parametrize(
    ("options", "whole", "inputs"),
    [
        ({}, 8, 0),
        ({"recompute_granularity": "full"}, 1, 8),
        ({"recompute_granularity": "full", "recompute_num_layers": 4}, 4, 2),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": 3,
            },
            5,
            3,
        ),
    ],
)
def test_layers_that_are_computed_again_keep_their_input(
    options: dict[str, Any], whole: int, inputs: int
) -> None:
    """Of 8 layers; those that are computed again together have all their values for that time."""
    recompute = recompute_of(options)
    assert (recompute.whole_layers(8), recompute.inputs_kept(8)) == (whole, inputs)


def test_activations_grow_with_tokens_and_shrink_with_tensor_parallelism() -> None:
    """Beyond what the loss and a matrix take, in proportion."""
    size = small()
    layers = [kept_values(size, NOTHING, 1) * 2 * tokens * 2 for tokens in (1000, 2000)]
    rest = [
        memory(tokens=tokens).activations - kept
        for tokens, kept in zip((1000, 2000), layers, strict=True)
    ]
    assert rest[1] < 2.1 * rest[0]
    assert memory(2000, tp=2).activations < 0.7 * memory(2000).activations


def test_the_loss_may_be_the_largest_moment() -> None:
    """One token: both layers' values, and what the loss takes before the backward pass begins."""
    needs = TrainerNeeds(Parallel(), "fp32", 1)
    held = trainer_memory(small(vocab_size=320, tie_word_embeddings=False), needs)
    loss = loss_memory(1, 8, 320, 4, "cuda").backward
    assert held.activations == loss + 2 * 4 * kept_values(small(), NOTHING, 1)


def test_on_a_cpu_gradients_are_summed_over_ranks_in_a_copy() -> None:
    needs = TrainerNeeds(Parallel(), "fp32", 1, place="cpu")
    assert trainer_memory(small(), needs).activations == 4 * 1464


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    assert [micro_batches_in_flight(Parallel(pp=4), stage) for stage in range(4)] == [4, 3, 2, 1]
    size = small(num_hidden_layers=4)
    first = trainer_memory(size, TrainerNeeds(Parallel(pp=2), "bf16", 4096))
    alone = trainer_memory(size, TrainerNeeds(Parallel(), "bf16", 4096))
    # Two micro-batches of half the layers: as much as one of all.
    kept = kept_values(size, NOTHING, 1) * 4 * 4096 * 2
    assert kept < first.activations < alone.activations
    assert rank_weights(size, Parallel(pp=2), 0).all * 2 == first.weights


def test_computing_layers_again_keeps_their_inputs_and_one_layer() -> None:
    size = small(num_hidden_layers=64)
    needs = TrainerNeeds(Parallel(), "bf16", 4096, FULL)
    kept = (64 * 8 + kept_values(size, FULL, 1)) * 2 * 4096
    found = trainer_memory(size, needs).activations
    assert kept < found < 1.4 * kept


def test_a_gpu_holds_more_than_tensors() -> None:
    assert memory().runtime == 4 * 10**9
    on_cpu = TrainerNeeds(Parallel(), "fp32", 1, place="cpu")
    assert trainer_memory(small(), on_cpu).runtime == 0


def test_a_layers_backward_pass_is_the_largest_moment_where_layers_are_computed_again() -> None:
    """Of each token the inputs, 64 x 8, one layer, the gradients of silu and up, 2 x 16, and of the
    layer's output, 8; and the gradients of gate and up, 2 x 16 x 8, and of the tied one, 8 x 8."""
    size = small(num_hidden_layers=64, vocab_size=8)
    found = trainer_memory(size, TrainerNeeds(Parallel(), "bf16", 4096, FULL)).activations
    values = 4096 * (64 * 8 + kept_values(size, FULL, 1) + 2 * 16 + 8)
    assert found == 2 * (values + 2 * 16 * 8 + 8 * 8)
