"""The critic's rank: what it learns, that every layout learns the same, and what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.algorithms.spec import Algorithm
from engines.megatron.spec import CriticSettings, Optimizer
from engines.step_inputs import StepInputs
from engines.types import Sample
from tests.integration.megatron.megatron_models import make_model, samples, sequences
from tests.integration.megatron.megatron_ranks import (
    EACH_LAYOUT,
    LAYOUTS,
    LENGTHS,
    Ranks,
    TrainerArgs,
)

pytestmark = pytest.mark.integration

PPO = Algorithm(preset="ppo")
FROZEN = CriticSettings(freeze_attention=True, clip=0.02)
CASES = {"qwen3": CriticSettings(), "qwen2": FROZEN, "gpt_oss": FROZEN}


def rollouts(seed: int = 3) -> list[Sample]:
    batch = sequences(LENGTHS, seed)
    return samples(batch, [[-1.0] * len(s.tokens) for s in batch])


def weights(critic: Any) -> dict[str, np.ndarray]:
    return {name: t.detach().cpu().numpy().copy() for name, t in critic.hf_tensors()}


def learn(critic: Any, steps: int, algorithm: Algorithm = PPO) -> dict[str, Any]:
    """So many steps on one batch; the values before each, its metrics, the weights at the end."""
    values, metrics = [], []
    for _ in range(steps):
        values.append(critic.values(StepInputs(rollouts(), algorithm)))
        metrics.append(critic.critic_step(StepInputs(rollouts(), algorithm, values=values[-1])))
    return {"values": values, "metrics": metrics, "weights": weights(critic)}


def learn_and_save(critic: Any, folder: Path) -> dict[str, Any]:
    learn(critic, 2)
    critic.save(folder)
    return learn(critic, 2)


def load_and_learn(critic: Any, folder: Path) -> dict[str, Any]:
    critic.load(folder)
    return learn(critic, 2)


def learn_and_export(critic: Any, folder: Path, source: Path) -> np.ndarray:
    learn(critic, 3)
    critic.export(folder, source)
    return critic.values(StepInputs(rollouts(), PPO))


def only_values(critic: Any) -> np.ndarray:
    return critic.values(StepInputs(rollouts(), PPO))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for name in CASES:
        make_model(name, root / name)
    return {name: root / name for name in CASES}


@pytest.fixture(scope="module")
def alone(ranks: Ranks, folders: dict[str, Path]) -> dict[str, Any]:
    return {
        name: ranks.run(learn, TrainerArgs(folders[name], critic=critic), 3)
        for name, critic in CASES.items()
    }


TELLING = [("pp2", "qwen3"), ("cp2", "qwen3"), ("dp2", "qwen3"), ("tp2", "qwen2")]
ALL = [*TELLING, ("tp2", "qwen3"), ("pp2", "qwen2"), ("pp2", "gpt_oss")]


@pytest.mark.parametrize(("layout", "name"), ALL if EACH_LAYOUT else TELLING)
def test_a_layout_learns_like_one_process(
    layout: str, name: str, ranks: Ranks, folders: dict[str, Path], alone: dict[str, Any]
) -> None:
    args = TrainerArgs(folders[name], LAYOUTS[layout], critic=CASES[name])
    here, there = ranks.run(learn, args, 3), alone[name]
    assert np.abs(there["values"][-1]).max() > 0.1, "the values have left zero"
    for mine, theirs in zip(here["values"], there["values"], strict=True):
        assert np.abs(mine - theirs).max() < 2e-5
    for mine, theirs in zip(here["metrics"], there["metrics"], strict=True):
        for metric in set(theirs) - {"critic_seconds", "critic_cpu_seconds"}:
            assert mine[metric] == pytest.approx(theirs[metric], rel=1e-4, abs=2e-6), metric
    assert here["weights"].keys() == there["weights"].keys()
    worst = max(float(np.abs(w - there["weights"][n]).max()) for n, w in here["weights"].items())
    assert worst < 1e-4


def test_the_first_loss_is_half_the_squared_reward(alone: dict[str, Any]) -> None:
    """The head starts at zero, and with a decay of 1 every token's return is its reward."""
    rewards = np.concatenate([[s.reward] * sum(s.loss_mask[1:]) for s in rollouts()])
    first = alone["qwen3"]["metrics"][0]
    assert not alone["qwen3"]["values"][0].any()
    assert first["return_mean"] == pytest.approx(rewards.mean(), rel=1e-6)
    assert (first["value_mean"], first["explained_variance"]) == (0, 0)
    assert 0 < first["value_loss"] < (rewards**2).mean() / 2


def test_a_critic_learns_which_rollouts_are_good(ranks: Ranks, folders: dict[str, Path]) -> None:
    args = TrainerArgs(folders["qwen3"], optimizer=Optimizer(lr=2e-3), critic=CriticSettings())
    explained = [m["explained_variance"] for m in ranks.run(learn, args, 8)["metrics"]]
    assert explained[0] == 0
    assert explained[-1] > 0.9


def test_frozen_attention_stays_and_the_rest_learns(
    folders: dict[str, Path], alone: dict[str, Any]
) -> None:
    from engines.megatron.hf.folder import HfWeights

    before = HfWeights(folders["qwen2"])
    for name, after in alone["qwen2"]["weights"].items():
        was = before.read(name).numpy() if name in before.file_of else np.zeros_like(after)
        assert (after == was).all() == (".self_attn." in name), name


@pytest.mark.parametrize("layout", ["tp2", "pp2"])
def test_a_checkpoint_continues_also_in_another_layout(
    layout: str, ranks: Ranks, folders: dict[str, Path], tmp_path: Path
) -> None:
    first = TrainerArgs(folders["qwen2"], LAYOUTS["pp2"], critic=FROZEN)
    then = TrainerArgs(folders["qwen2"], LAYOUTS[layout], critic=FROZEN)
    whole = ranks.run(learn_and_save, first, tmp_path / "checkpoint")
    rest = ranks.run(load_and_learn, then, tmp_path / "checkpoint")
    bound = 0 if layout == "pp2" else 1e-4
    for name, weight in whole["weights"].items():
        assert np.abs(weight - rest["weights"][name]).max() <= bound, name
    assert np.abs(whole["values"][-1] - rest["values"][-1]).max() <= bound


@pytest.mark.parametrize(
    ("name", "layout"), [("qwen3", "tp2"), ("qwen2", "pp2"), ("gpt_oss", "dp2")]
)
def test_an_exported_critic_is_a_token_classifier_and_can_go_on(
    name: str, layout: str, ranks: Ranks, folders: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForTokenClassification

    args = TrainerArgs(folders[name], LAYOUTS[layout], critic=CriticSettings())
    ours = ranks.run(learn_and_export, args, tmp_path, folders[name])
    again = ranks.run(only_values, TrainerArgs(tmp_path, critic=CriticSettings()))
    assert np.abs(again - ours).max() < 2e-5
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path).float().eval()
    assert theirs.config.num_labels == 1
    start = 0
    for sample in rollouts():
        with torch.no_grad():
            said = theirs(torch.tensor([sample.tokens])).logits[0, :, 0].numpy()
        # The value of a token is that of the state before it.
        mine = ours[start + 1 : start + len(sample.tokens)]
        trained = np.array(sample.loss_mask[1:], bool)
        assert np.abs(mine - said[:-1])[trained].max() < 2e-5
        start += len(sample.tokens)
