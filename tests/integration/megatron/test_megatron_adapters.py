"""Adapters train as low-rank matrices written by hand in transformers do, in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.algorithms.spec import Algorithm
from engines.megatron.parallel import one_rank
from engines.megatron.spec import Lora, Optimizer, Parallel, TrainerSettings
from engines.megatron.train.sft_trainer import SftTrainer
from engines.step_inputs import StepInputs
from tests.integration.megatron.megatron_models import make_model, samples, sequences, varied
from tests.integration.megatron.megatron_ranks import (
    COMBINED,
    EACH_LAYOUT,
    LAYOUTS,
    LENGTHS,
    RECOMPUTE,
    SPEC,
    Ranks,
    TrainerArgs,
)

pytestmark = pytest.mark.integration

LORA = Lora(rank=4, alpha=6.0)
STEPS = 50
SHORT = [9, 6, 12]


def read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    prefix = "base_model.model."
    stored = load_file(folder / "adapter/adapter_model.safetensors")
    assert all(name.startswith(prefix) for name in stored)
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items()}


def adapted(model: Any, matrices: dict[str, torch.Tensor]) -> None:
    """Every module for which there are matrices also gives alpha / rank x B A x."""

    def added_by(module: str) -> Any:
        a, b = (matrices[f"{module}.lora_{letter}.weight"] for letter in "AB")
        return lambda _, inputs, output: output + LORA.alpha / LORA.rank * (inputs[0] @ a.T @ b.T)

    model.requires_grad_(False)
    for name in {name.rpartition(".lora_")[0] for name in matrices}:
        model.get_submodule(name).register_forward_hook(added_by(name))


def loss_of(model: Any, batch: list[Any]) -> torch.Tensor:
    """Mean over all trained tokens."""
    summed, count = torch.zeros(()), 0
    for sequence in batch:
        tokens = torch.tensor(sequence.tokens)
        logprobs = torch.log_softmax(model(tokens[None]).logits[0, :-1], -1)
        mask = torch.tensor(sequence.loss_mask[1:])
        summed = summed - (logprobs.gather(1, tokens[1:, None])[:, 0] * mask).sum()
        count += int(mask.sum())
    return summed / count


def test_fifty_steps_end_where_those_of_transformers_do(tmp_path: Path) -> None:
    """Phi's q, k and v are one module; Qwen's, which the layouts below train, are three."""
    source = tmp_path / "source"
    model = make_model("phi3", source)
    batches = [sequences(SHORT, seed) for seed in range(STEPS)]
    adam: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01, "eps": 1e-8}
    with one_rank():
        optimizer = Optimizer(**adam, beta2=0.95, clip_grad=0.0)
        spec = TrainerSettings(lora=LORA)
        trainer = SftTrainer(spec, optimizer, Parallel(), source, seed=3, total_steps=STEPS)
        trainer.export(tmp_path / "first", source)
        losses = [metrics["loss"] for metrics in trainer.sft_steps(batches)]
        trainer.export(tmp_path / "last", source)
    matrices = read_adapter(tmp_path / "first")
    assert len(matrices) == 2 * 4 * model.config.num_hidden_layers
    assert not any(tensor.any() for name, tensor in matrices.items() if ".lora_B." in name)
    adapted(model, matrices)
    learned = [tensor.requires_grad_() for tensor in matrices.values()]
    theirs = torch.optim.AdamW(learned, **adam, betas=(0.9, 0.95))
    for batch, loss in zip(batches, losses, strict=True):
        theirs.zero_grad()
        expected = loss_of(model, batch)
        expected.backward()
        theirs.step()
        assert loss == pytest.approx(expected.item(), abs=1e-5)
    for name, tensor in read_adapter(tmp_path / "last").items():
        assert (tensor - matrices[name]).abs().max() < 1e-5, name
    merged = type(model).from_pretrained(tmp_path / "last")
    assert loss_of(merged, batches[0]).item() == pytest.approx(
        loss_of(model, batches[0]).item(), abs=1e-5
    )
    config = json.loads((tmp_path / "last/adapter/adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]


def train(trainer: Any, folder: Path, source: Path, teacher: Path) -> dict[str, Any]:
    """Supervised steps around a checkpoint, then a step of RL with a reference and what a teacher
    says."""
    batch = sequences(LENGTHS, 3)
    first = trainer.logprobs([s.tokens for s in batch])
    supervised = trainer.sft_steps([sequences(LENGTHS, 1), sequences(LENGTHS[:3], 2)])
    trainer.save(folder / "checkpoint")
    further = trainer.sft_steps([sequences(LENGTHS, 4)])
    trained = weights(trainer)
    trainer.load(folder / "checkpoint")
    assert trainer.sft_steps([sequences(LENGTHS, 4)])[0]["loss"] == further[0]["loss"]
    resumed = weights(trainer)
    rollouts = samples(batch, [[x - 0.1 * (j % 5) for j, x in enumerate(v)] for v in first])
    with_kl = Algorithm.model_validate({"kl": {"coef": 0.1}, "mini_batches": 1})
    reinforced = trainer.rl_step(StepInputs(rollouts, with_kl, False)).metrics
    trainer.load_teachers({"test": teacher})
    taught = trainer.rl_step(StepInputs(rollouts, Algorithm(preset="opd", mini_batches=1), False))
    trainer.export(folder / "model", source)
    return {
        "supervised": [metrics["loss"] for metrics in supervised],
        "norms": [metrics["grad_norm"] for metrics in supervised],
        "reference_kl": reinforced["reference_kl"],
        "teacher_kl": taught.metrics["teacher_kl"],
        "same_bits": all(np.array_equal(trained[name], resumed[name]) for name in trained),
    }


def weights(trainer: Any) -> dict[str, np.ndarray]:
    return {name: t.detach().cpu().numpy().copy() for name, t in trainer.hf_tensors()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    make_model("qwen3", root / "qwen3")
    varied(root / "qwen3", root / "teacher", seed=1)
    return root


@pytest.fixture(scope="module")
def alone(ranks: Ranks, root: Path) -> dict[str, Any]:
    return in_layout(ranks, root, Parallel(), "alone")


def in_layout(
    ranks: Ranks, root: Path, parallel: Parallel, name: str, recompute: str = "kept"
) -> dict[str, Any]:
    spec = SPEC.model_copy(update={"lora": LORA, "megatron": RECOMPUTE[recompute]})
    args = TrainerArgs(root / "qwen3", parallel, spec)
    return ranks.run(train, args, root / name, root / "qwen3", root / "teacher")


@pytest.mark.parametrize(
    ("layout", "recompute"),
    [(layout, how) for layout in (*LAYOUTS, *COMBINED) for how in RECOMPUTE]
    if EACH_LAYOUT
    else [("tp2", "kept"), ("pp2", "layers"), ("dp2", "kept")],
)
def test_a_layout_trains_adapters_like_one_process(
    layout: str, recompute: str, ranks: Ranks, root: Path, alone: dict[str, Any]
) -> None:
    there = f"{layout}-{recompute}"
    here = in_layout(ranks, root, {**LAYOUTS, **COMBINED}[layout], there, recompute)
    assert here["same_bits"]
    assert alone["same_bits"]
    for figure, mine in here.items():
        assert mine == pytest.approx(alone[figure], rel=1e-5, abs=1e-6), figure
    assert alone["reference_kl"] > 0
    mine, theirs = (read_adapter(root / name / "model") for name in (there, "alone"))
    assert len(mine) == 2 * 7 * 4
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (mine[name] - tensor).abs().max() < 1e-5, name
