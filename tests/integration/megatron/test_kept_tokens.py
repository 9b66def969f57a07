"""Logprobs among the tokens that truncation kept: the engine's, the trainer's and float64's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.algorithms.spec import Algorithm, Keep
from engines.devices.host_agent import HostAgent
from engines.megatron.spec import TrainerSettings
from engines.megatron.train.pack import FlatSequences
from engines.sglang.client import GenerationClient
from engines.sglang.servers.server import Place
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec
from engines.step_inputs import StepInputs
from engines.types import Generation, Kept, Sample, Sampling, Status
from infra.errors import TrainingStopped
from tests.integration.megatron.megatron_models import VOCAB, make_model, samples, sequences
from tests.integration.megatron.megatron_ranks import LAYOUTS, LENGTHS, SPEC, Ranks, TrainerArgs
from tests.parts.sample_parts import sample_of
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration

TEMPERATURE = 0.7
BATCH = sequences(LENGTHS, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("models") / "qwen3"
    return folder, make_model("qwen3", folder)


def kept_of(tokens: Sequence[int], mask: Sequence[int], seed: int) -> Kept:
    """None to six others beside each trained token."""
    draw, ids = np.random.default_rng(seed), list[int]()
    for token in (token for token, trained in zip(tokens, mask, strict=True) if trained):
        others = draw.choice(np.delete(np.arange(VOCAB), token), draw.integers(7), replace=False)
        ids += [~token, *sorted(others.tolist())]
    return np.array(ids, np.int32)


KEPT = [kept_of(s.tokens, s.loss_mask, number) for number, s in enumerate(BATCH)]


def by_float64(reference: Any) -> tuple[np.ndarray, float]:
    """Of each token as `score` gives it, and the mean entropy, by transformers and numpy."""
    logprobs, entropies = list[float](), list[float]()
    for sequence, kept in zip(BATCH, KEPT, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([sequence.tokens])).logits[0].double().numpy()
        rows = iter(np.split(kept, np.flatnonzero(kept < 0)[1:]))
        for place, trained in enumerate(sequence.loss_mask):
            row = next(rows) if trained else None
            if row is None or not place:
                logprobs.append(0.0)
                continue
            scaled = logits[place - 1][np.where(row < 0, ~row, row)] / TEMPERATURE
            own = scaled - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())
            logprobs.append(float(own[0]))
            entropies.append(float(-(np.exp(own) * own).sum()))
    return np.array(logprobs), float(np.mean(entropies))


def scored(trainer: Any) -> np.ndarray:
    flat = FlatSequences.of([s.tokens for s in BATCH], [s.loss_mask for s in BATCH], KEPT)
    return trainer.score(flat, TEMPERATURE)


def made_of(logprobs: np.ndarray) -> list[Sample]:
    ends = np.cumsum([len(s.tokens) for s in BATCH])[:-1]
    made = samples(BATCH, [part.tolist() for part in np.split(logprobs, ends)])
    return [replace(s, kept=kept) for s, kept in zip(made, KEPT, strict=True)]


def updated(trainer: Any, logprobs: np.ndarray) -> dict[str, float]:
    """Metrics of two updates with a KL term and an entropy bonus."""
    written = {"kl": {"coef": 0.1}, "entropy_bonus": 0.01, "keep": {"top_k": 7}}
    algorithm = Algorithm.model_validate({**written, "temperature": TEMPERATURE})
    metrics = trainer.rl_step(StepInputs(made_of(logprobs), algorithm, True, 0)).metrics
    names = ("loss", "grad_norm", "entropy", "ratio_mean", "reference_kl", "mismatch_max")
    return {name: metrics[name] for name in names}


@pytest.mark.parametrize("layout", ["tp2", "cp2", "other packs"])
def test_every_layout_and_packing_has_the_logprobs_of_float64_and_one_update(
    layout: str, ranks: Ranks, model: tuple[Path, Any]
) -> None:
    folder, reference = model
    wanted, entropy = by_float64(reference)
    other = TrainerSettings(micro_batch_tokens=SPEC.most_tokens // 2)
    args = TrainerArgs(folder, spec=other)
    if layout in LAYOUTS:
        args = TrainerArgs(folder, LAYOUTS[layout])
    alone, shared = (ranks.run(scored, each) for each in (TrainerArgs(folder), args))
    assert alone == pytest.approx(wanted, abs=2e-5)
    assert shared == pytest.approx(wanted, abs=2e-5)
    one, two = (ranks.run(updated, each, wanted) for each in (TrainerArgs(folder), args))
    assert one["mismatch_max"] < 2e-5
    assert one["entropy"] == pytest.approx(entropy, rel=0.05), "the second update's has moved"
    assert two == pytest.approx(one, rel=2e-5, abs=1e-5)


def refused(trainer: Any, kept: Sequence[Kept | None]) -> str:
    made = [replace(s, kept=k) for s, k in zip(made_of(scored(trainer)), kept, strict=True)]
    with pytest.raises(TrainingStopped) as caught:
        trainer.rl_step(StepInputs(made, Algorithm(keep=Keep()), False))
    return str(caught.value)


def test_rollouts_that_do_not_say_what_was_kept_are_not_trained_on(
    ranks: Ranks, model: tuple[Path, Any]
) -> None:
    args, cut = TrainerArgs(model[0]), [*KEPT[:-1], KEPT[-1][:1]]
    assert "no sample says what was kept" in ranks.run(refused, args, [None] * len(KEPT))
    assert "does not say of each trained token" in ranks.run(refused, args, cut)


def compared(trainer: Any, made: list[Sample], keep: Keep) -> tuple[float, float, dict[str, float]]:
    """The largest distance of logprobs, with and without what was kept; metrics of a step."""
    tokens, masks = [s.tokens for s in made], [s.loss_mask for s in made]
    engine = np.concatenate([s.logprobs for s in made])
    within, free = (
        np.abs(trainer.score(FlatSequences.of(tokens, masks, kept), TEMPERATURE) - engine).max()
        for kept in ([s.kept for s in made], ())
    )
    algorithm = Algorithm(temperature=TEMPERATURE, keep=keep, mini_batches=1, agreement_gate=1e-5)
    return float(within), float(free), trainer.rl_step(StepInputs(made, algorithm, True, 0)).metrics


def test_a_server_and_the_trainer_agree_on_what_was_kept(ranks: Ranks, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model", "qwen3", initializer_range=0.1)
    keep = Keep(top_k=64, top_p=0.95, min_p=0.01)
    (tmp_path / "servers").mkdir()
    slots = ServerSlots(HostAgent(tmp_path / "servers", 0))
    prompts = [[(11 * i + j) % 256 for j in range(3 + 5 * i)] for i in range(6)]
    try:
        slots.grow(1)
        router = slots.prepare({"server-0": Place(tp=1)}, FleetSpec(), folder, 0)
        said, alone = (asyncio.run(asked(router.url, prompts, keep, n)) for n in (12, 2))
    finally:
        slots.close()
    for one, other in zip(said, alone, strict=True):
        assert np.array_equal(one.kept, other.kept)
        assert np.array_equal(one.logprobs, other.logprobs)
    made = [rollout(i, *pair) for i, pair in enumerate(zip(prompts, said, strict=True))]
    kept = np.concatenate([g.kept for g in said if g.kept is not None])
    sizes = np.diff(np.flatnonzero(kept < 0), append=len(kept))
    assert 1 < sizes.mean() < sizes.max() <= 64
    within, free, metrics = ranks.run(compared, TrainerArgs(folder), made, keep)
    assert within <= 2e-5
    assert free > 1e-3, "the whole distribution is another one"
    assert metrics["ratio_max"] == pytest.approx(1, abs=2e-5)


async def asked(url: str, prompts: list[list[int]], keep: Keep, max_batch: int) -> list[Generation]:
    """Beside as many turns that are sampled from all tokens."""
    async with GenerationClient(url, max_batch=max_batch) as client:
        how = [
            Sampling(24, TEMPERATURE, keep=each, seed=i) for i in range(6) for each in (keep, None)
        ]
        turns = zip([ids for ids in prompts for _ in range(2)], how, strict=True)
        said = await asyncio.gather(*(client.generate(ids, sampling) for ids, sampling in turns))
    assert all(free.kept is None for free in said[1::2])
    return said[0::2]


def rollout(index: int, prompt: list[int], said: Generation) -> Sample:
    count, length = len(said.token_ids), len(prompt)
    return sample_of(
        *("p", "test", "g", f"r{index}", index),
        [*prompt, *said.token_ids.tolist()],
        [0] * length + [1] * count,
        [0.0] * length + said.logprobs.tolist(),
        [-1] * length + [0] * count,
        Status.COMPLETED,
        float(index % 2),
        kept=said.kept,
    )
