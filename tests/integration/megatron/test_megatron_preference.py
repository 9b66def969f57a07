"""A policy that learns from comparisons: the step one would write by hand, in every layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from engines.algorithms.preference_losses import PreferenceLoss
from engines.algorithms.reward_losses import BradleyTerry, PlackettLuce, Regression
from engines.batching import Comparison, TokenSequence
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from tests.integration.megatron.megatron_models import make_model, sequences
from tests.integration.megatron.megatron_ranks import (
    EACH_LAYOUT,
    LAYOUTS,
    LENGTHS,
    Ranks,
    TrainerArgs,
)

pytestmark = pytest.mark.integration

LOSSES: dict[str, Any] = {"dpo": {"beta": 0.2}, "kto": "kto", "orpo": "orpo"}
OTHERS = [11, 8, 30, 6, 14, 9, 21, 13]


def loss_of(name: str) -> PreferenceLoss:
    return TypeAdapter[PreferenceLoss](PreferenceLoss).validate_python(LOSSES[name])


def batch_of(name: str, scored: list[float], others: list[float]) -> list[Comparison]:
    answers = sequences(LENGTHS, 3)
    if name != "kto":
        pairs = range(0, len(answers), 2)
        return [Comparison(answers[at : at + 2], reference=scored[at : at + 2]) for at in pairs]
    return [
        Comparison([answer], at % 3 > 0, reference=[of, of_other], other=other)
        for at, (answer, of, of_other, other) in enumerate(
            zip(answers, scored, others, sequences(OTHERS, 4), strict=True)
        )
    ]


def learn(trainer: Any, name: str, steps: int) -> dict[str, Any]:
    """So many steps on one batch, against the weights that the trainer began with."""
    scored = trainer.answer_logprobs(sequences(LENGTHS, 3))
    others = trainer.answer_logprobs(sequences(OTHERS, 4))
    batch = batch_of(name, scored, others)
    metrics = [trainer.preference_steps(loss_of(name), [batch])[0] for _ in range(steps)]
    weights = {n: t.detach().cpu().numpy().copy() for n, t in trainer.hf_tensors()}
    return {"scored": scored, "metrics": metrics, "weights": weights}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("model")
    return folder, make_model("qwen3", folder)


def args_of(folder: Path, layout: Parallel, tokens: int = 96) -> TrainerArgs:
    spec = TrainerSettings(micro_batch_tokens=tokens)
    return TrainerArgs(folder, layout, spec, Optimizer(lr=1e-3), policy="preference")


@pytest.fixture(scope="module")
def alone(ranks: Ranks, model: tuple[Path, Any]) -> dict[str, Any]:
    args = args_of(model[0], Parallel(), tokens=4096)
    return {name: ranks.run(learn, args, name, 2) for name in LOSSES}


CASES = [(layout, "dpo") for layout in LAYOUTS] + [("cp2", "kto"), ("dp2", "kto"), ("dp2", "orpo")]
SHOWN = CASES if EACH_LAYOUT else [("tp2", "dpo"), ("pp2", "dpo"), ("cp2", "kto"), ("dp2", "orpo")]


@pytest.mark.parametrize(("layout", "name"), [*SHOWN, ("alone", "dpo"), ("alone", "kto")])
def test_every_layout_and_packing_learns_the_same(
    layout: str, name: str, ranks: Ranks, model: tuple[Path, Any], alone: dict[str, Any]
) -> None:
    """The micro-batches are smaller, too, than in the one process that they are compared with."""
    args = args_of(model[0], {**LAYOUTS, "alone": Parallel()}[layout])
    here, there = ranks.run(learn, args, name, 2), alone[name]
    assert here["scored"] == pytest.approx(there["scored"], abs=1e-3)
    unlike = {"seconds", "cpu_seconds", "tokens_per_s", "mfu"}
    # Before the first update all log ratios are 0, but for rounding: none is above another.
    left_out = ({"accuracy"}, set[str]())
    for mine, theirs, out in zip(here["metrics"], there["metrics"], left_out, strict=True):
        for metric in set(theirs) - unlike - out:
            assert mine[metric] == pytest.approx(theirs[metric], rel=2e-4, abs=2e-5), metric
    worst = max(float(np.abs(w - there["weights"][n]).max()) for n, w in here["weights"].items())
    assert worst < 2e-4


def learn_rewards(trainer: Any, steps: int) -> dict[str, Any]:
    answers = sequences(LENGTHS, 3)
    pairs = range(0, len(answers), 2)
    batch = [Comparison(answers[at : at + 2], margin=0.1 * at, worth=[1, 0]) for at in pairs]
    metrics = [trainer.reward_steps(BradleyTerry(), [batch])[0] for _ in range(steps)]
    weights = {n: t.detach().cpu().numpy().copy() for n, t in trainer.hf_tensors()}
    return {"rewards": trainer.rewards(answers), "metrics": metrics, "weights": weights}


def learn_rewards_and_export(trainer: Any, folder: Path, source: Path) -> list[float]:
    learn_rewards(trainer, 3)
    trainer.export(folder, source)
    return trainer.rewards(sequences(LENGTHS, 3))


def reward_args(folder: Path, layout: Parallel, tokens: int = 96) -> TrainerArgs:
    return replace(args_of(folder, layout, tokens), policy="reward")


@pytest.fixture(scope="module")
def rewarded_alone(ranks: Ranks, model: tuple[Path, Any]) -> dict[str, Any]:
    return ranks.run(learn_rewards, reward_args(model[0], Parallel(), tokens=4096), 2)


@pytest.mark.parametrize("layout", [*(LAYOUTS if EACH_LAYOUT else ("tp2", "cp2")), "alone"])
def test_every_layout_and_packing_learns_the_same_rewards(
    layout: str, ranks: Ranks, model: tuple[Path, Any], rewarded_alone: dict[str, Any]
) -> None:
    there = rewarded_alone
    args = reward_args(model[0], {**LAYOUTS, "alone": Parallel()}[layout])
    here = ranks.run(learn_rewards, args, 2)
    first = there["metrics"][0]
    by_hand = np.mean(np.log1p(np.exp(0.2 * np.arange(4))))
    assert first["loss"] == pytest.approx(by_hand, rel=1e-6), "the head starts at zero"
    assert max(map(abs, there["rewards"])) > 0.01
    assert here["rewards"] == pytest.approx(there["rewards"], abs=1e-4)
    for mine, theirs in zip(here["metrics"], there["metrics"], strict=True):
        for metric in ("loss", "grad_norm", "margin", "chosen_reward"):
            assert mine[metric] == pytest.approx(theirs[metric], rel=2e-4, abs=2e-5), metric
    worst = max(float(np.abs(w - there["weights"][n]).max()) for n, w in here["weights"].items())
    assert worst < 2e-4


def learn_lists_and_scores(trainer: Any) -> list[dict[str, float]]:
    """Lists of three, four and one pair's answers; then each answer by itself."""
    answers = sequences(LENGTHS, 3)[:8]
    parts = [answers[:3], answers[3:7], [answers[7], answers[0]]]
    lists = [Comparison(each, worth=[float(n) for n in range(len(each))]) for each in parts]
    alone = [Comparison([answer], worth=[at / 4]) for at, answer in enumerate(answers)]
    return [
        *(trainer.reward_steps(PlackettLuce(kind="plackett-luce"), [lists])[0] for _ in range(2)),
        *(trainer.reward_steps(Regression(kind="regression"), [alone])[0] for _ in range(2)),
    ]


@pytest.mark.parametrize("layout", ["cp2", "dp2"])
def test_lists_of_several_lengths_and_scores_are_learned_alike_in_layouts(
    layout: str, ranks: Ranks, model: tuple[Path, Any]
) -> None:
    alone = ranks.run(learn_lists_and_scores, reward_args(model[0], Parallel(), tokens=4096))
    here = ranks.run(learn_lists_and_scores, reward_args(model[0], LAYOUTS[layout]))
    # Of equal rewards each order of k answers has the probability 1 / k!.
    assert alone[0]["loss"] == pytest.approx(np.log([6, 24, 2]).mean(), rel=1e-6)
    assert alone[1]["loss"] < alone[0]["loss"]
    assert alone[3]["loss"] < alone[2]["loss"]
    for mine, theirs in zip(here, alone, strict=True):
        for metric in theirs.keys() & {"loss", "grad_norm", "margin", "error"}:
            assert mine[metric] == pytest.approx(theirs[metric], rel=2e-4, abs=2e-5), metric


def test_an_exported_reward_model_is_a_classifier_of_the_last_token(
    ranks: Ranks, model: tuple[Path, Any], tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    args = reward_args(model[0], LAYOUTS["tp2"])
    ours = ranks.run(learn_rewards_and_export, args, tmp_path, model[0])
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).float().eval()
    theirs.config.pad_token_id = -1
    assert theirs.config.id2label == {0: "reward"}
    with torch.no_grad():
        said = [float(theirs(torch.tensor([s.tokens])).logits[0]) for s in sequences(LENGTHS, 3)]
    assert ours == pytest.approx(said, abs=2e-5)


def logprob(model: Any, answer: TokenSequence) -> torch.Tensor:
    """Of its trained tokens, by transformers in float64."""
    tokens = torch.tensor([answer.tokens])
    said = model(tokens).logits[0, :-1].log_softmax(-1)
    chosen = said.gather(1, tokens[0, 1:, None])[:, 0]
    return (chosen * torch.tensor(answer.loss_mask[1:])).sum()


def test_a_step_is_the_one_that_transformers_makes(
    model: tuple[Path, Any], alone: dict[str, Any]
) -> None:
    reference = model[1].double()
    sums = torch.stack([logprob(reference, answer) for answer in sequences(LENGTHS, 3)])
    assert alone["dpo"]["scored"] == pytest.approx(sums.tolist(), rel=1e-5)
    ratios = sums - sums.detach()
    loss = -torch.nn.functional.logsigmoid(0.2 * (ratios[0::2] - ratios[1::2])).mean()
    loss.backward()
    norm = sum(float((p.grad**2).sum()) for p in reference.parameters()) ** 0.5
    first, then = alone["dpo"]["metrics"]
    assert first["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert first["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert then["loss"] < first["loss"]
    assert then["accuracy"] == 1
    assert then["margin"] > 0
    assert then["chosen_drift"] > then["rejected_drift"]
    mean = float(sums.detach()[0::2].sum()) / sum(
        sum(s.loss_mask[1:]) for s in sequences(LENGTHS, 3)[0::2]
    )
    assert first["chosen_logprob"] == pytest.approx(mean, rel=1e-5)


def test_the_baseline_is_the_mean_log_ratio_of_other_rows_answers(alone: dict[str, Any]) -> None:
    first, then = alone["kto"]["metrics"]
    assert first["baseline"] == pytest.approx(0, abs=1e-6)
    assert first["loss"] == pytest.approx(0.5, abs=1e-6), "no answer is above or below it yet"
    assert then["baseline"] >= 0
    assert "baseline" not in alone["dpo"]["metrics"][0]
