"""Stages whose rewards ask served models, which they lease beside the policy's servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engines.rollout.records.gallery import read_rollouts
from engines.rollout.records.packing import saved_groups
from engines.types import TRAINABLE
from tasks.evaluate.body import run as run_evaluate
from tasks.evaluate.spec import SCORES_FILE, EvaluateSpec
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSpec
from tasks.rollout.body import run as run_rollout
from tasks.rollout.spec import RolloutSpec
from tasks.served.body import run as run_served
from tasks.served.spec import ServedSpec
from tasks.stage import Resources
from tests.parts.reward_models import with_head
from tests.parts.stage_parts import STEADY, ListReporter, scored, stage_context

pytestmark = pytest.mark.integration

PROMPT = "{question} => {answer}"
BY_CHOICE: dict[str, Any] = {
    "name": "judge",
    "options": {"prompt": PROMPT, "choices": {"cat": 1, "dog": 0}},
    "served": {"model": "base"},
}
BY_HEAD: dict[str, Any] = {
    "name": "reward-model",
    "options": {"scale": "raw"},
    "served": {"model": "./rm"},
    "weight": 0.1,
}
# A random model seldom ends its turn, and the outcome of a truncated answer is asked of nobody.
OUTCOME = STEADY["rewards"][0]
DOMAIN = {**STEADY, "max_new_tokens": 12, "rewards": [OUTCOME, BY_CHOICE, BY_HEAD]}
BY_HEADS: dict[str, Any] = {
    "name": "reward-model",
    "label": "heads",
    "options": {"scale": "raw", "combine": "mean", "disagreement_penalty": 2},
    "served": {"model": ["./rm", "./other-rm"]},
}
POOL = Resources(trainer_ranks=1, servers=3)


@pytest.fixture(scope="module")
def inputs(stage_root: Path, small_base: Path) -> dict[str, Path]:
    """The policy, which judges itself, and a reward model as its stage imports it."""
    folder = with_head(small_base, stage_root / "rm")
    spec = ServedSpec.model_validate({"settings": {"folder": str(folder)}})
    context = stage_context(stage_root, "role-reward-model", {})
    metrics = asyncio.run(run_served(spec, context))
    assert metrics["parameters"] > 0
    return {"model": small_base, "role.judge": small_base, "role.reward-model": context.out}


async def test_rl_trains_on_what_served_models_say(
    cluster: None, stage_root: Path, inputs: dict[str, Path]
) -> None:
    settings = {
        "steps": 2, "problems_per_step": 2, "group_size": 3, "optimizer": {"lr": 1e-2},
        "keep_rollouts": True,
    }  # fmt: skip
    spec = RlSpec.model_validate({"settings": settings, "domains": [DOMAIN]})
    context = stage_context(stage_root, "rl-judged", inputs, pool=POOL)
    metrics = await run_rl(spec, context)
    assert metrics["steps"] == 2
    assert isinstance(context.reporter, ListReporter)
    assert context.reporter.steps[1]["reward_mean"] > 0
    shown = list(read_rollouts(context.out / "rollouts.parquet"))
    told = json.loads(shown[0].rewards)
    assert {"judge", "judge/cat", "judge/dog", "reward-model/raw"} <= told.keys()
    assert "the judge prefers" in shown[0].reason
    before = (inputs["model"] / "model.safetensors").read_bytes()
    assert (context.out / "model.safetensors").read_bytes() != before


async def test_several_reward_models_are_one_reward(
    cluster: None, stage_root: Path, small_base: Path, inputs: dict[str, Path]
) -> None:
    other = with_head(small_base, stage_root / "other-rm", seed=1)
    spec = ServedSpec.model_validate({"settings": {"folder": str(other)}})
    imported = stage_context(stage_root, "role-reward-model-2", {})
    await run_served(spec, imported)
    heads = {"role.reward-model-1": inputs["role.reward-model"]}
    models = {"model": inputs["model"], **heads, "role.reward-model-2": imported.out}
    context = stage_context(stage_root, "rollout-heads", models, pool=POOL)
    await run_rollout(_rollout_spec({**DOMAIN, "rewards": [OUTCOME, BY_HEADS]}), context)
    samples = [sample for group in saved_groups(context.out) for sample in group.samples]
    assert any(sample.status in TRAINABLE for sample in samples)
    for told in (sample.rewards for sample in samples if sample.status in TRAINABLE):
        one, two = told["heads/1"], told["heads/2"]
        assert one != pytest.approx(two), "they are different models"
        assert told["heads/disagreement"] == pytest.approx(abs(one - two) / 2)
        assert told["heads"] == pytest.approx((one + two) / 2 - abs(one - two))


async def test_a_judge_answers_in_words_or_too_late(
    cluster: None, stage_root: Path, inputs: dict[str, Path]
) -> None:
    words = {"prompt": PROMPT, "pattern": "^$", "unreadable": 0.25, "max_new_tokens": 6}
    judge = {**BY_CHOICE, "options": words}
    late = {**BY_CHOICE, "timeout_s": 1e-4}
    for term, name in ((judge, "words"), (late, "late")):
        domain = {**DOMAIN, "rewards": [OUTCOME, term]}
        only = {key: path for key, path in inputs.items() if "reward" not in key}
        context = stage_context(stage_root, f"rollout-{name}", only, pool=POOL)
        metrics = await run_rollout(_rollout_spec(domain), context)
        samples = [sample for group in saved_groups(context.out) for sample in group.samples]
        if name == "words":
            assert {s.rewards["judge"] for s in samples if s.status in TRAINABLE} == {0.25}
            assert all("the judge: " in sample.reason for sample in samples)
        else:
            assert metrics["failed_share"] == 1.0, "and the stage ended as any other"
            assert all("no answer within timeout_s 0.0001" in s.reason for s in samples)
            assert "outcome_mean" not in metrics, "no verdict is no score of 0"
            assert isinstance(context.reporter, ListReporter)
            assert [w.figures for w in context.reporter.kept] == [{"failed": 4, "asked": 4}]


async def test_an_evaluation_scores_models_and_not_what_judges_them(
    cluster: None, stage_root: Path, inputs: dict[str, Path]
) -> None:
    content = {
        "settings": {"problems": 2, "samples": 1},
        "domains": [{**scored(DOMAIN), "outcomes": [BY_CHOICE]}],
        "home": {"model": ["general"]},
    }
    only = {key: path for key, path in inputs.items() if "reward" not in key}
    context = stage_context(stage_root, "evaluate-judged", only, pool=POOL)
    metrics = await run_evaluate(EvaluateSpec.model_validate(content), context)
    scores = json.loads((context.out / SCORES_FILE).read_text())
    assert "role.judge" not in json.dumps(scores)
    assert 0 <= metrics["score/model/general"] <= 1


def _rollout_spec(domain: dict[str, Any]) -> RolloutSpec:
    settings = {"problems": 2, "group_size": 2}
    return RolloutSpec.model_validate({"settings": settings, "domains": [domain]})
