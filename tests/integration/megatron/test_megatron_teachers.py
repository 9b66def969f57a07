"""One process: frozen teachers in a real trainer, each asked about its own domain only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engines.algorithms.spec import Algorithm
from engines.megatron.parallel import one_rank
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.megatron.train.sleep import on_device
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
    scores = trainer.teachers.score(trainer, batch, StepInputs(batch.samples, OPD))
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


def test_a_served_teacher_teaches_what_one_in_the_ranks_does(folders: dict[str, Path]) -> None:
    trainer, other = with_teachers(folders), trainer_of(folders["student"])
    batch = rollouts(trainer)
    plain = OPD.model_copy(update={"temperature": 1.0})
    said = trainer_of(folders["tales"]).logprobs([s.tokens for s in batch])
    given = {n: np.array(said[n], np.float32) for n, s in enumerate(batch) if s.domain == "tales"}
    other.load_teachers({"sums": folders["sums"]}, ["tales"])
    inputs = StepInputs(batch, plain, teacher_logprobs=given)
    found = other.rl_step(inputs).metrics
    wanted = trainer.rl_step(StepInputs(batch, plain)).metrics
    for name in ("loss", "teacher_kl", "teacher_kl_sums", "teacher_kl_tales", "grad_norm"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4), name


def whole(trainer: RlTrainer, batch: RlBatch) -> NDArray[np.float64]:
    """[R, V] logprobs of all tokens at each trained place."""
    vocab, everything = trainer.shape.vocab, np.arange(len(batch.learned.lengths))
    head = {"temperature": OPD.temperature, "num_top": vocab}
    said = trainer.read_all(batch.learned, head, everything, batch.trained(), 2 + 2 * vocab)
    found = np.empty((said.shape[1], vocab))
    np.put_along_axis(found, said[2 + vocab :].T.astype(int), said[1 : 1 + vocab].T, 1)
    return found


@pytest.mark.parametrize(("direction", "top_k"), [("reverse", "all"), ("forward", 5)])
def test_the_loss_of_whole_distributions_is_that_of_float64_and_falls(
    folders: dict[str, Path], direction: str, top_k: int | str
) -> None:
    trainer = with_teachers(folders)
    samples = rollouts(trainer)
    algorithm = Algorithm.model_validate({
        "advantage": "distillation", "temperature": OPD.temperature, "mini_batches": 1,
        "loss": {"kind": "divergence", "direction": direction, "top_k": top_k},
    })  # fmt: skip
    batch = RlBatch.of(samples, algorithm)
    student = whole(trainer, batch)
    taught = np.repeat(np.arange(8) % 2, batch.num_trained)
    both = [whole(trainer_of(folders[domain]), batch) for domain in DOMAINS]
    teacher = np.where(taught[:, None] == 0, *both)
    count = student.shape[1] if top_k == "all" else int(top_k)
    order = np.argsort(-teacher, 1)
    s, t = (np.take_along_axis(np.exp(x), order, 1) for x in (student, teacher))
    if count < student.shape[1]:
        s, t = (np.c_[x[:, :count], x[:, count:].sum(1)] for x in (s, t))
    p, q = (s, t) if direction == "reverse" else (t, s)
    metrics = [trainer.rl_step(StepInputs(samples, algorithm, True, 0)).metrics]
    assert metrics[0]["loss"] == pytest.approx((p * np.log(p / q)).sum(1).mean(), rel=1e-4)
    metrics += [trainer.rl_step(StepInputs(samples, algorithm)).metrics for _ in range(3)]
    assert metrics[3]["loss"] < 0.9 * metrics[0]["loss"]


def test_ten_teachers_take_no_more_memory_than_one(folders: dict[str, Path]) -> None:
    """A rank holds the student's weights and one other set, while it scores; nothing afterwards."""
    trainer = trainer_of(folders["student"])
    names = [f"domain{n}" for n in range(10)]
    batch = rollouts(trainer)
    batch = [replace(sample, domain=names[n % 10]) for n, sample in enumerate([*batch, *batch])]
    model = sum(p.nbytes for p in trainer.policy.parameters())
    seen: list[int] = []
    read = trainer.read_all

    def measured(*args: Any) -> Any:
        seen.append(on_device(set())[0])
        return read(*args)

    before = on_device(set())[0]
    trainer.load_teachers({name: folders[DOMAINS[n % 2]] for n, name in enumerate(names)})
    assert on_device(set())[0] == before
    trainer.read_all = measured
    trainer.teachers.score(trainer, RlBatch.of(batch, OPD), StepInputs(batch, OPD))
    assert len(seen) == 10
    assert max(seen) - before == pytest.approx(model, rel=0.02)


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
