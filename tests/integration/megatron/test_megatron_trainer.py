"""One process: weights go in and out exactly, and a step is the step one would write by hand."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence
from engines.devices.units import TRAINER_PARTS
from engines.families.common.registry import family_names
from engines.megatron.hf.folder import HfWeights
from engines.megatron.parallel import one_rank
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.megatron.train.pack import FlatSequences, build_pack
from engines.step_inputs import StepInputs
from engines.types import Sample, Status
from engines.weight_versions import WeightVersions
from infra.errors import AgreementError, InputError, TrainingStopped
from tests.integration.megatron.megatron_models import (
    VARIANTS,
    make_model,
    samples,
    sequences,
)
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration

LENGTHS = [40, 7, 23, 12, 31, 18, 5, 9]
FAMILIES = (*family_names(), *VARIANTS)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Folder and transformers model of each family."""
    root = tmp_path_factory.mktemp("models")
    return {name: (root / name, make_model(name, root / name)) for name in FAMILIES}


def trainer_of(folder: Path, micro_batch_tokens: int = 4096, **optimizer: Any) -> RlTrainer:
    return RlTrainer(
        TrainerSettings(micro_batch_tokens=micro_batch_tokens),
        Optimizer(**({"lr": 1e-3} | optimizer)),
        Parallel(),
        folder,
        seed=0,
        total_steps=10,
    )


def weights_of(trainer: RlTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.hf_tensors()}


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def rollouts(trainer: RlTrainer, shift: float = 0.0, temperature: float = 1.0) -> list[Sample]:
    batch = sequences(LENGTHS, 3)
    exact = trainer.logprobs([s.tokens for s in batch], temperature)
    return samples(batch, [[x + shift for x in values] for values in exact])


# Weights


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_pack_are_those_of_transformers(
    family: str, models: dict[str, tuple[Path, Any]]
) -> None:
    folder, reference = models[family]
    trainer = trainer_of(folder)
    tokens = [s.tokens for s in sequences(LENGTHS)]
    flat = FlatSequences.of(tokens, [[1] * len(t) for t in tokens])
    pack = build_pack(flat, list(range(len(tokens))), trainer.layout)
    with torch.no_grad():
        ours = trainer.policy(
            input_ids=pack.input_ids, position_ids=None, attention_mask=None, packed_seq_params=pack
        )
        theirs = torch.cat([reference(torch.tensor([t])).logits[0, :-1] for t in tokens])
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_export_is_its_source_to_the_bit(
    family: str, models: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folder, _ = models[family]
    trainer_of(folder).export(tmp_path / "out", folder)
    before, after = HfWeights(folder), HfWeights(tmp_path / "out")
    assert before.file_of == after.file_of
    assert all(torch.equal(before.read(n), after.read(n)) for n in before.file_of)
    assert (tmp_path / "out/config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_an_export_keeps_the_stored_type_and_the_models_other_files(
    models: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    models["qwen3"][1].bfloat16().save_pretrained(source, max_shard_size="20KB")
    models["qwen3"][1].float()
    (source / "chat_template.jinja").write_text("{{ messages }}")
    for record in ("rollouts.parquet", "takes.jsonl"):  # of the stage that made the source
        (source / record).write_bytes(b"")
    trainer_of(source).export(tmp_path / "out", source)
    assert not list((tmp_path / "out").glob("*.parquet")) + list((tmp_path / "out").glob("*.jsonl"))
    before, after = HfWeights(source), HfWeights(tmp_path / "out")
    assert len(set(before.file_of.values())) > 1
    assert all(torch.equal(before.read(n), after.read(n)) for n in before.file_of)
    assert (tmp_path / "out/chat_template.jinja").read_text() == "{{ messages }}"


def test_tables_of_rotary_angles_come_through_training_as_they_were(
    models: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    """Old Llama folders store them; no engine reads them."""
    from safetensors.torch import load_file, save_file

    table = "model.layers.0.self_attn.rotary_emb.inv_freq"
    source = shutil.copytree(models["llama"][0], tmp_path / "source")
    stored = load_file(source / "model.safetensors") | {table: torch.arange(4.0)}
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    trainer_of(source).export(tmp_path / "out", source)
    assert torch.equal(HfWeights(tmp_path / "out").read(table), torch.arange(4.0))
    stored["surplus.weight"] = torch.ones(1)
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"holds surplus\.weight"):
        trainer_of(source).export(tmp_path / "out", source)


def test_a_missing_tensor_is_named(models: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = models["qwen3"][0]
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"lacks the tensor model\.layers\.2\.mlp\.up_proj"):
        trainer_of(tmp_path)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        trainer_of(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(InputError, match="'mamba' is not supported"):
        trainer_of(tmp_path)


# Supervised steps


def test_a_step_is_adamw_on_the_mean_loss_of_trained_tokens(
    models: dict[str, tuple[Path, Any]],
) -> None:
    folder, _ = models["llama"]
    from transformers import AutoModelForCausalLM

    reference: Any = AutoModelForCausalLM.from_pretrained(folder).float()
    batch = sequences(LENGTHS)
    loss: Any = 0
    for s in batch:
        logprobs = reference(torch.tensor([s.tokens])).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(s.tokens[1:])[:, None])[:, 0]
        loss = loss - (chosen * torch.tensor(s.loss_mask[1:])).sum()
    loss = loss / sum(sum(s.loss_mask[1:]) for s in batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    torch.optim.AdamW(reference.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0).step()

    trainer = trainer_of(folder, clip_grad=0.5)
    (metrics,) = trainer.sft_steps([batch])
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert norm > 0.5
    theirs = {name: p.detach() for name, p in reference.named_parameters()}
    assert largest_difference(weights_of(trainer), theirs) < 1e-4


@pytest.mark.parametrize("variant", ["separate", "permuted"])
def test_neither_packing_nor_order_changes_a_step(
    variant: str, models: dict[str, tuple[Path, Any]]
) -> None:
    folder, _ = models["qwen3"]
    batch = sequences(LENGTHS)
    packed = trainer_of(folder)
    (wanted,) = packed.sft_steps([batch])
    other = trainer_of(folder, micro_batch_tokens=1 if variant == "separate" else 50)
    (got,) = other.sft_steps([batch if variant == "separate" else batch[::-1]])
    assert got["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert got["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)
    assert largest_difference(weights_of(other), weights_of(packed)) < 1e-5


def test_warm_up_then_decay_ends_at_the_final_rate(models: dict[str, tuple[Path, Any]]) -> None:
    optimizer = {"lr": 1e-3, "warmup_steps": 2, "decay": "linear", "min_lr_ratio": 0.2}
    trainer = trainer_of(models["qwen3"][0], **optimizer)
    rates = [m["lr"] for m in trainer.sft_steps([sequences([6, 6])] * 10)]
    # Half, then the peak at step 2, then linearly to a fifth at step 10: 0.1e-3 a step.
    wanted = [5e-4, 1e-3, *(1e-3 - 1e-4 * i for i in range(1, 9))]
    assert rates == pytest.approx(wanted)


def test_a_batch_without_trained_tokens_stops_training(
    models: dict[str, tuple[Path, Any]],
) -> None:
    with pytest.raises(TrainingStopped, match="no trained token"):
        trainer_of(models["qwen3"][0]).sft_steps([[TokenSequence([1, 2, 3], [1, 0, 0])]])


# Reinforcement steps


def test_the_first_mini_batch_sees_ratio_one_and_no_mismatch(
    models: dict[str, tuple[Path, Any]],
) -> None:
    trainer = trainer_of(models["qwen3"][0])
    batch = rollouts(trainer)
    trained = trainer.rl_step(StepInputs(batch, Algorithm(mini_batches=1), True, shown=(2, 0)))
    assert list(trained.logprobs) == [2, 0]
    for place, logprobs in trained.logprobs.items():
        assert logprobs == pytest.approx(batch[place].logprobs, abs=2e-5)
    metrics = trained.metrics
    assert metrics["mismatch_max"] < 2e-5
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert metrics["entropy"] > 0
    assert trainer.steps_done == 1


def test_the_trainer_scores_at_the_temperature_of_sampling(
    models: dict[str, tuple[Path, Any]],
) -> None:
    trainer = trainer_of(models["qwen3"][0])
    batch = rollouts(trainer, temperature=0.7)
    warm = Algorithm(mini_batches=1, temperature=0.7)
    assert trainer.rl_step(StepInputs(batch, warm, True)).metrics["mismatch_max"] < 2e-5
    trainer = trainer_of(models["qwen3"][0])
    with pytest.raises(AgreementError):
        trainer.rl_step(StepInputs(batch, Algorithm(mini_batches=1), True))


def test_each_sample_is_trained_on_at_the_temperature_that_it_was_sampled_at(
    models: dict[str, tuple[Path, Any]],
) -> None:
    """Also by old logprobs and the reference; the entropy is the mean over the tokens of both."""
    folder = models["qwen3"][0]
    algorithm = Algorithm(mini_batches=1, old_logprobs="trainer", kl={"coef": 0.1})

    def step(*temperatures: float) -> dict[str, float]:
        trainer = trainer_of(folder)
        made = [rollouts(trainer, temperature=t) for t in temperatures]
        batch = [made[n % len(made)][n] for n in range(len(LENGTHS))]
        for n, each in enumerate(batch):
            each.temperature = temperatures[n % len(made)]
        return trainer.rl_step(StepInputs(batch, algorithm, True)).metrics

    mixed, cool, hot = step(0.7, 1.3), step(0.7), step(1.3)
    assert mixed["mismatch_max"] < 2e-5
    assert mixed["reference_kl"] == pytest.approx(0, abs=1e-9)
    assert cool["entropy"] + 0.01 < mixed["entropy"] < hot["entropy"] - 0.01
    plain, warm = trainer_of(folder), algorithm.model_copy(update={"temperature": 0.7})
    set_by = plain.rl_step(StepInputs(rollouts(plain, temperature=0.7), warm, True)).metrics
    assert [set_by[n] for n in ("loss", "grad_norm")] == [cool[n] for n in ("loss", "grad_norm")]


def test_the_gate_says_which_token_differs_and_leaves_the_weights(
    models: dict[str, tuple[Path, Any]],
) -> None:
    trainer = trainer_of(models["qwen3"][0])
    batch = rollouts(trainer)
    exact = float(batch[2].logprobs[20])
    batch[2].logprobs[20] = exact - 3.0
    before = weights_of(trainer)
    with pytest.raises(AgreementError) as caught:
        trainer.rl_step(StepInputs(batch, Algorithm(mini_batches=1), True))
    message = str(caught.value)
    assert "sample 2 of p0 (rollout r2), token position 20" in message
    assert f"trainer {exact:.5f}, engine {exact - 3:.5f}" in message
    assert largest_difference(weights_of(trainer), before) == 0
    for sample in (sample for sample in batch if sample is not batch[2]):
        runs = [(version + (version >= 0), count) for version, count in sample.weight_versions.runs]
        sample.weight_versions = WeightVersions.of_runs(runs)
    metrics = trainer.rl_step(StepInputs(batch, Algorithm(mini_batches=1), True)).metrics
    assert metrics["lag0_mean"] < 2e-5, "of what the present weights wrote"
    assert metrics["mismatch_max"] > 2.9


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(
    models: dict[str, tuple[Path, Any]],
) -> None:
    trainer = trainer_of(models["qwen3"][0])
    batch = rollouts(trainer)
    batch[0].logprobs[-1] = math.nan
    before = weights_of(trainer)
    with pytest.raises(TrainingStopped, match="the loss is nan"):
        trainer.rl_step(StepInputs(batch, Algorithm(mini_batches=1), False))
    assert largest_difference(weights_of(trainer), before) == 0


def test_samples_that_cannot_be_trained_on_change_nothing(
    models: dict[str, tuple[Path, Any]],
) -> None:
    results = []
    for extra in (False, True):
        trainer = trainer_of(models["qwen3"][0])
        batch = rollouts(trainer, shift=-0.05)
        if extra:
            aborted, failed, masked = rollouts(trainer)[:3]
            aborted.status, aborted.reward = Status.ABORTED, 50.0
            failed.status, failed.reward = Status.FAILED, math.nan
            masked.loss_mask, masked.reward = np.zeros(len(masked.tokens), np.bool_), 9.0
            batch += [aborted, failed, masked]
        metrics = trainer.rl_step(StepInputs(batch, Algorithm(), False)).metrics
        results.append((metrics["loss"], metrics["grad_norm"], weights_of(trainer)))
    assert results[0][:2] == results[1][:2]
    assert largest_difference(results[0][2], results[1][2]) == 0
    with pytest.raises(TrainingStopped, match="none of the step's 2 samples"):
        trainer.rl_step(StepInputs([aborted, failed], Algorithm(), False))


def test_samples_of_one_rollout_count_once_in_their_group(
    models: dict[str, tuple[Path, Any]],
) -> None:
    from engines.megatron.rl.rl_batch import RlBatch

    batch = rollouts(trainer_of(models["qwen3"][0]))[:3]
    for sample, rollout, reward in zip(batch, ("a", "a", "b"), (1.0, 1.0, 0.0), strict=True):
        sample.rollout_id, sample.reward = rollout, reward
    algorithm = Algorithm(advantage={"std": False})
    made = RlBatch.of(batch, algorithm)
    advantages = made.targets(algorithm, None, None).advantages
    # Mean of two rollouts, not of three samples: (1 + 0) / 2.
    ends = made.flat.starts + made.flat.lengths - 1
    assert advantages[ends].tolist() == [0.5, 0.5, -0.5]


def test_logprobs_at_a_temperature_are_those_of_scaled_logits(
    models: dict[str, tuple[Path, Any]],
) -> None:
    folder, reference = models["qwen2"]
    tokens = sequences([9])[0].tokens
    (got,) = trainer_of(folder).logprobs([tokens], 0.5)
    with torch.no_grad():
        scaled = (reference(torch.tensor([tokens])).logits[0, :-1] / 0.5).log_softmax(-1)
    wanted = scaled.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    assert got == pytest.approx([0.0, *wanted], abs=1e-4)


def test_a_sleeping_rank_returns_its_memory_and_wakes_with_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "large"
    tiny_model(folder, hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    trainer, twin = trainer_of(folder), trainer_of(folder)
    for each in (trainer, twin):
        each.sft_steps([sequences(LENGTHS)])
    before, held = weights_of(trainer), psutil.Process().memory_info().rss
    did = trainer.hold(())
    # Weights, gradients and two moments, each a float32 a parameter.
    assert did.given_back == did.asleep >= 16 * sum(tensor.numel() for tensor in before.values())
    assert held - psutil.Process().memory_info().rss >= 0.8 * did.given_back
    assert trainer.asleep == TRAINER_PARTS
    # Weights alone, as for a publish, and with the optimizer, as for a checkpoint.
    did = trainer.hold({"weights"})
    assert (did.given_back, trainer.asleep) == (0, TRAINER_PARTS - {"weights"})
    after = weights_of(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.hold({"weights", "optimizer"}).asleep < did.asleep
    trainer.save(tmp_path / "saved")
    trainer.hold({"weights"})
    trainer.hold(TRAINER_PARTS)
    assert not trainer.asleep
    after = weights_of(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before)
    # Moments, master weights and the schedule came back as well: the next steps are the same.
    for each in (trainer, twin):
        each.sft_steps([sequences(LENGTHS)])
    assert largest_difference(weights_of(trainer), weights_of(twin)) == 0.0
    twin.load(tmp_path / "saved")
    twin.sft_steps([sequences(LENGTHS)])
    assert largest_difference(weights_of(trainer), weights_of(twin)) == 0.0, "saved half asleep"
