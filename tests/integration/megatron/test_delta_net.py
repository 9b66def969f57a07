"""Gated delta nets: sequences of a pack do not feel each other, over blocks and chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from engines.megatron.delta_net import delta_rule
from engines.megatron.parallel import one_rank
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.megatron.train.pack import FlatSequences, build_pack
from tests.integration.megatron.megatron_models import make_model, sequences
from tests.integration.megatron.test_families import (
    assert_gradients,
    gradients,
    gradients_of,
    nll_of,
)

pytestmark = pytest.mark.integration
LENGTHS = [300, 70, 5, 130, 300, 1, 9]
"""two blocks: short ones side by side, and both longest ones; up to five chunks of 64 tokens"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RlTrainer, Any]]:
    """A trainer, and transformers with the same weights."""
    folder = tmp_path_factory.mktemp("model")
    reference = make_model("qwen3_5_text-long", folder)
    with one_rank():
        yield (
            RlTrainer(
                TrainerSettings(micro_batch_tokens=4096),
                Optimizer(lr=1e-3),
                Parallel(),
                folder,
                seed=0,
                total_steps=10,
            ),
            reference,
        )


def logits_of(trainer: RlTrainer, tokens: list[list[int]]) -> list[torch.Tensor]:
    """Logits of each sequence's tokens but the last, in one pack; in the order given."""
    flat = FlatSequences.of(tokens, [[1] * len(t) for t in tokens])
    pack = build_pack(flat, list(range(len(tokens))), trainer.layout)
    with torch.no_grad():
        rows = trainer.policy(
            input_ids=pack.input_ids, position_ids=None, attention_mask=None, packed_seq_params=pack
        )
    of_row = torch.from_numpy(pack.segment_of_row)
    return [rows[of_row == number] for number in range(len(tokens))]


def test_long_sequences_of_a_pack_give_the_logits_and_gradients_of_transformers(
    model: tuple[RlTrainer, Any],
) -> None:
    trainer, reference = model
    batch = sequences(LENGTHS)
    with torch.no_grad():
        expected = [reference(torch.tensor([s.tokens])).logits[0, :-1] for s in batch]
    for ours, theirs in zip(logits_of(trainer, [s.tokens for s in batch]), expected, strict=True):
        assert ours.shape == theirs.shape
        # Chunk by chunk and token by token, transformers differs from itself by 1.3e-5.
        assert torch.allclose(ours, theirs, rtol=0, atol=2e-5)
    wanted = gradients_of(reference, nll_of(reference, batch))
    found = gradients(trainer, batch)
    # Of decays transformers' are 2.4e-4 from those in float64, and ours 2e-5; of others 6e-5.
    coarse = {name for name in wanted if name.endswith(("A_log", "dt_bias"))}
    for name in coarse:
        apart = float((torch.from_numpy(found[name]) - wanted[name]).abs().max())
        assert apart <= 3e-4 * float(wanted[name].abs().max()), name
    assert_gradients(
        *({n: g for n, g in each.items() if n not in coarse} for each in (found, wanted))
    )


def test_a_sequence_feels_no_other_in_its_pack(model: tuple[RlTrainer, Any]) -> None:
    """Others' tokens change no bit of it; and its logits are those that it has alone."""
    trainer, _ = model
    tokens = [s.tokens for s in sequences(LENGTHS)]
    together = logits_of(trainer, tokens)
    for number in range(len(tokens)):
        changed = [t if n == number else [(i + 1) % 96 for i in t] for n, t in enumerate(tokens)]
        assert torch.equal(logits_of(trainer, changed)[number], together[number])
        (alone,) = logits_of(trainer, [tokens[number]])
        assert torch.allclose(alone, together[number], rtol=0, atol=2e-6)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_chunks_are_what_token_by_token_is(length: int) -> None:
    """Numbers and gradients, where states fade quickly, slowly, and not at all."""
    draw = torch.Generator().manual_seed(length)
    sizes = [(2, length, heads, width) for heads, width in ((2, 8), (2, 8), (4, 6))]
    query, key, value = (torch.randn(size, generator=draw) for size in sizes)
    query, key = (torch.nn.functional.normalize(x, dim=-1) for x in (query, key))
    beta = torch.rand(2, length, 4, generator=draw)
    decay = -torch.rand(2, length, 4, generator=draw) * torch.tensor([20.0, 1.0, 1e-3, 0.0])
    given = [x.requires_grad_() for x in (query, key, value, decay, beta)]
    found = delta_rule(*given)
    expected, _ = torch_recurrent_gated_delta_rule(*given)
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    upstream = torch.randn(found.shape, generator=draw)
    for ours, theirs in zip(
        torch.autograd.grad(found, given, upstream),
        torch.autograd.grad(expected, given, upstream),
        strict=True,
    ):
        assert float((ours - theirs).abs().max()) <= 1e-5 * float(
            theirs.abs().max().clamp_min(1e-3)
        )
