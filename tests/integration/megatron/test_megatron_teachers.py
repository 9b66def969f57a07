"""One process: frozen teachers in a real trainer, each asked about its own domain only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engines.algorithms.spec import Algorithm
from engines.megatron.parallel import one_rank
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.step_inputs import StepInputs
from engines.types import Sample
from infra.errors import InputError, TrainingStopped
from tests.integration.megatron.megatron_models import (
    make_model,
    samples,
    sequences,
    varied,
)

pytestmark = pytest.mark.integration

DOMAINS = ("sums", "tales")
OPD = Algorithm(preset="opd", temperature=0.7)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_rank():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    make_model("qwen3", root / "student")
    teachers = {d: varied(root / "student", root / d, seed=n) for n, d in enumerate(DOMAINS)}
    return {"student": root / "student", **teachers}


def trainer_of(folder: Path) -> RlTrainer:
    spec = TrainerSettings(micro_batch_tokens=64)
    return RlTrainer(spec, Optimizer(lr=1e-3), Parallel(), folder, seed=0, total_steps=10)


def with_teachers(folders: dict[str, Path]) -> RlTrainer:
    trainer = trainer_of(folders["student"])
    trainer.load_teachers({d: folders[d] for d in DOMAINS})
    return trainer


def rollouts(trainer: RlTrainer) -> list[Sample]:
    batch = sequences([40, 7, 23, 12, 31, 18, 5, 9], 3)
    exact = trainer.logprobs([s.tokens for s in batch], OPD.temperature)
    return samples(batch, exact, domains=DOMAINS)


def test_each_sample_is_scored_by_its_own_domains_teacher(folders: dict[str, Path]) -> None:
    trainer = with_teachers(folders)
    before = [p.detach().clone() for p in trainer.policy.parameters()]
    batch = RlBatch.of(rollouts(trainer), OPD)
    scores = trainer.teachers.score(trainer, batch, OPD.temperature)
    assert scores is not None
    assert scores.domains == DOMAINS
    after = list(trainer.policy.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    sequence_R = np.repeat(np.arange(8), batch.num_trained)
    for row, domain in enumerate(DOMAINS):
        said = trainer_of(folders[domain]).logprobs([s.tokens for s in batch.samples], 0.7)
        masks = [np.array(s.loss_mask) == 1 for s in batch.samples]
        wanted_R = np.concatenate([np.array(v)[m] for v, m in zip(said, masks, strict=True)])
        own_R = sequence_R % 2 == row
        found_R = scores.logprobs_KR[row].numpy()
        assert found_R[own_R] == pytest.approx(wanted_R[own_R], abs=1e-5)
        assert np.isnan(found_R[~own_R]).all()
        assert scores.weights_NK[:, row].tolist() == [float(n % 2 == row) for n in range(8)]


def test_a_step_pulls_towards_the_teachers_and_rewards_play_no_part(
    folders: dict[str, Path],
) -> None:
    trainer, other = with_teachers(folders), with_teachers(folders)
    batch = rollouts(trainer)
    metrics = trainer.rl_step(StepInputs(batch, OPD, True, 0)).metrics
    assert abs(metrics["teacher_kl_sums"] - metrics["teacher_kl_tales"]) > 0.01
    assert metrics["rejected_share"] == 0
    turned = [*rollouts(other)]
    for sample in turned:
        sample.reward = -3 * sample.reward
    assert other.rl_step(StepInputs(turned, OPD, True, 0)).metrics["loss"] == metrics["loss"]
    pairs = zip(trainer.policy.parameters(), other.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_student_of_its_own_weights_has_nothing_to_learn(folders: dict[str, Path]) -> None:
    trainer = trainer_of(folders["student"])
    trainer.load_teachers(dict.fromkeys(DOMAINS, folders["student"]))
    metrics = trainer.rl_step(StepInputs(rollouts(trainer), OPD, True, 0)).metrics
    # Not exactly: a teacher's samples are packed without those of the others.
    assert abs(metrics["teacher_kl"]) < 1e-6
    assert abs(metrics["loss"]) < 1e-6


def test_a_teacher_of_another_shape_or_a_domain_without_one_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    trainer = trainer_of(folders["student"])
    longer = varied(folders["student"], tmp_path / "longer", seed=9)
    config = json.loads((longer / "config.json").read_text())
    (longer / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))
    with pytest.raises(InputError, match=r"teacher of sums does not have .*num_layers=5"):
        trainer.load_teachers({"sums": longer})
    trainer.load_teachers({"sums": folders["sums"]})
    with pytest.raises(TrainingStopped, match="samples of tales have no teacher"):
        trainer.rl_step(StepInputs(rollouts(trainer), OPD, True, 0))
