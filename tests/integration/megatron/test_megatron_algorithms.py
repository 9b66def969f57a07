"""One process: what a composition does to a real step, and to the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engines.algorithms.combinations import refusals
from engines.algorithms.spec import PRESETS, Algorithm
from engines.megatron.parallel import one_rank
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.megatron.train.pack import FlatSequences
from engines.step_inputs import StepInputs
from engines.types import Sample, Status
from infra.errors import AgreementError, InputError
from infra.user_files import install_hooks, read_hooks
from tests.integration.megatron.megatron_models import make_model, samples, sequences

pytestmark = pytest.mark.integration

LENGTHS = [40, 7, 23, 12, 31, 18, 5, 9]
ALONE = [
    name
    for name in PRESETS
    if "critic" not in (algorithm := Algorithm(preset=name)).needs
    and not list(refusals(algorithm, 8))
]
"""presets that train without a critic or teachers"""
EXAMPLES = Path(__file__).parents[3] / "examples" / "custom_algorithm"


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model("qwen3", folder)
    return folder


def trainer_of(folder: Path) -> RlTrainer:
    spec = TrainerSettings(micro_batch_tokens=64)
    return RlTrainer(spec, Optimizer(lr=1e-3), Parallel(), folder, seed=0, total_steps=10)


def rollouts(trainer: RlTrainer, shift: float = 0.0) -> list[Sample]:
    """As if an engine had sampled them whose logprobs are off by `shift` nats."""
    batch = sequences(LENGTHS, 3)
    exact = trainer.logprobs([s.tokens for s in batch])
    return samples(batch, [[x + shift for x in values] for values in exact])


def flat_of(seed: int) -> FlatSequences:
    batch = sequences(LENGTHS, seed)
    return FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])


def weights_of(trainer: RlTrainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.policy.parameters()]


@pytest.mark.parametrize("preset", ALONE)
def test_every_preset_trains(preset: str, folder: Path) -> None:
    trainer = trainer_of(folder)
    before = weights_of(trainer)
    algorithm = Algorithm.model_validate({"preset": preset})
    metrics = trainer.rl_step(StepInputs(rollouts(trainer), algorithm, True, 0)).metrics
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["grad_norm"] > 0
    assert metrics["mismatch_max"] < 2e-5
    assert trainer.steps_done == algorithm.mini_batches
    moved = [not torch.equal(a, b) for a, b in zip(before, weights_of(trainer), strict=True)]
    assert all(moved)


@pytest.mark.parametrize(
    "loss", [{"kind": "clip"}, {"kind": "clip", "dual_clip": 3.0}, "gspo", "cispo", "dis"]
)
@pytest.mark.parametrize("said", [-100.0, -np.inf])
def test_one_token_that_the_engine_had_given_up_is_counted_and_ends_no_run(
    loss: object, said: float, folder: Path
) -> None:
    trainer = trainer_of(folder)
    made = rollouts(trainer)
    place = int(np.flatnonzero(made[0].loss_mask)[0])
    made[0].logprobs = made[0].logprobs.copy()
    made[0].logprobs[place] = said
    algorithm = Algorithm.model_validate({"mini_batches": 1, "loss": loss})
    metrics = trainer.rl_step(StepInputs(made, algorithm, False)).metrics
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["extreme_ratio_tokens"] == 1
    assert metrics["ratio_max"] == pytest.approx(np.exp(20), rel=1e-5)
    # Like a step without this token: it has no gradient. gspo's ratio is of the whole sequence.
    if loss != "gspo":
        assert 0 < metrics["grad_norm"] < 10


def test_what_is_masked_is_scored_for_the_kl_among_the_rewards(folder: Path) -> None:
    """Equal rewards, one rollout masked, the policy one nat a token above what it was."""
    trainer = trainer_of(folder)
    made = rollouts(trainer)[:4]
    made[1].status = Status.TRUNCATED
    algorithm = Algorithm.model_validate(
        {
            "advantage": {"kind": "group", "std": False},
            "kl": {"coef": 0.1, "place": "reward", "estimator": "k1"},
            "truncated": "mask",
            "old_logprobs": "trainer",
        }
    )
    first = trainer.token_rewards(StepInputs(made, algorithm))
    batch = RlBatch.of(made, algorithm)
    assert len(first) == len(batch.flat.tokens) > len(batch.learned.tokens)
    assert np.abs(first).max() == 0
    trainer.rl_step(StepInputs(made, Algorithm(), False))
    later = trainer.token_rewards(StepInputs(made, algorithm))
    masked = later[len(batch.learned.tokens) :]
    own = np.flatnonzero(batch.flat.trained[len(batch.learned.tokens) :])
    whole = [s.tokens for s in batch.samples]
    moved = np.concatenate(trainer.logprobs(whole)) - np.concatenate(
        trainer_of(folder).logprobs(whole)
    )
    wanted = -0.1 * moved[len(batch.learned.tokens) :][own]
    assert masked[own] == pytest.approx(wanted, abs=1e-6)
    assert np.abs(wanted).max() > 1e-4


def test_recomputed_old_logprobs_make_the_first_ratio_one(folder: Path) -> None:
    for old, ratio in (("engine", np.exp(0.3)), ("trainer", 1.0)):
        trainer = trainer_of(folder)
        algorithm = Algorithm.model_validate({"mini_batches": 1, "old_logprobs": old})
        # The engine thought every token less likely by 0.3 nats.
        metrics = trainer.rl_step(StepInputs(rollouts(trainer, -0.3), algorithm, False)).metrics
        assert metrics["ratio_mean"] == pytest.approx(ratio, rel=1e-4)
        assert metrics["mismatch_k1"] == pytest.approx(-0.3, abs=1e-4)
        assert metrics["mismatch_ratio_p50"] == pytest.approx(np.exp(0.3), rel=1e-4)


def test_a_dense_model_has_no_experts_to_replay(folder: Path) -> None:
    trainer = trainer_of(folder)
    algorithm = Algorithm(old_logprobs="trainer", routing_replay="trainer")
    with pytest.raises(InputError, match="this model is dense"):
        trainer.rl_step(StepInputs(rollouts(trainer), algorithm, False))


def test_the_gate_holds_before_the_trainers_own_old_logprobs_hide_a_mismatch(folder: Path) -> None:
    trainer = trainer_of(folder)
    before = weights_of(trainer)
    with pytest.raises(AgreementError, match="trainer and engine disagree"):
        trainer.rl_step(
            StepInputs(rollouts(trainer, -0.3), Algorithm(old_logprobs="trainer"), True)
        )
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(trainer), strict=True))


def test_a_weight_scales_the_step_and_a_rejection_takes_it_away(folder: Path) -> None:
    norms = {}
    for name, correction in (
        ("none", {}),
        ("weighed", {"weight": {"high": 4.0}}),
        ("rejected", {"weight": {"high": 4.0}, "reject": [{"kind": "ratio", "high": 1.2}]}),
    ):
        trainer = trainer_of(folder)
        algorithm = Algorithm.model_validate(
            {"mini_batches": 1, "old_logprobs": "trainer", "correction": correction}
        )
        metrics = trainer.rl_step(StepInputs(rollouts(trainer, -0.3), algorithm, False)).metrics
        norms[name] = metrics["grad_norm"]
    # Every ratio is exp(0.3) = 1.35: inside the weight's bounds, outside the band.
    assert norms["weighed"] == pytest.approx(np.exp(0.3) * norms["none"], rel=1e-3)
    assert norms["rejected"] == 0
    assert metrics["rejected_share"] == 1
    assert metrics["weight_mean"] == pytest.approx(np.exp(0.3), rel=1e-3)


def test_the_reference_is_the_first_model_and_leaves_the_policy_alone(folder: Path) -> None:
    trainer = trainer_of(folder)
    flat = flat_of(0)
    first = trainer.score(flat, 1.0)
    algorithm = Algorithm(kl={"coef": 0.5}, mini_batches=1)
    metrics = trainer.rl_step(StepInputs(rollouts(trainer), algorithm, True)).metrics
    # Nothing has moved yet: no distance, no gradient of it.
    assert metrics["reference_kl"] == pytest.approx(0, abs=1e-6)
    before = weights_of(trainer)
    assert np.abs(trainer.reference_score(flat, 1.0) - first).max() == 0
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(trainer), strict=True))
    assert np.abs(trainer.score(flat, 1.0) - first).max() > 1e-3
    assert (
        trainer.rl_step(StepInputs(rollouts(trainer), algorithm, True)).metrics["reference_kl"]
        > 1e-6
    )


def test_a_strong_pull_to_the_reference_keeps_the_policy_near(folder: Path) -> None:
    distance = {}
    for coef in (0.0, 10.0):
        trainer = trainer_of(folder)
        algorithm = Algorithm.model_validate({"kl": {"coef": coef, "unbiased": coef > 0}})
        for _ in range(3):
            trainer.rl_step(StepInputs(rollouts(trainer), algorithm, True))
        flat = flat_of(3)
        distance[coef] = float(
            np.abs(trainer.score(flat, 1.0) - trainer.reference_score(flat, 1.0)).mean()
        )
    assert distance[10.0] < 0.8 * distance[0.0]


def test_an_entropy_bonus_raises_the_entropy(folder: Path) -> None:
    entropy: dict[float, list[float]] = {}
    for bonus in (0.0, 1.0):
        trainer = trainer_of(folder)
        algorithm = Algorithm(entropy_bonus=bonus, mini_batches=1)
        steps = [
            trainer.rl_step(StepInputs(rollouts(trainer), algorithm, True)).metrics
            for _ in range(4)
        ]
        entropy[bonus] = [step["entropy"] for step in steps]
    assert entropy[0.0][0] == pytest.approx(entropy[1.0][0])
    assert entropy[1.0][-1] > entropy[0.0][-1] + 1e-3


def test_custom_parts_train(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    install_hooks(read_hooks([str(file) for file in EXAMPLES.glob("*.py")]))
    trainer = trainer_of(folder)
    algorithm = Algorithm.model_validate(
        {
            "advantage": {"kind": "custom", "path": "best_of_group:advantage"},
            "loss": {"kind": "custom", "path": "soft_clip:loss", "options": {"width": 0.5}},
        }
    )
    metrics = trainer.rl_step(StepInputs(rollouts(trainer), algorithm, True)).metrics
    assert metrics["grad_norm"] > 0
    assert metrics["loss"] == pytest.approx(0, abs=1e-2)
