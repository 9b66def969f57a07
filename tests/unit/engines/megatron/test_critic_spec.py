"""What a recipe may say of a critic, and what `check` refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from engines.megatron.spec import CriticSettings, Optimizer, TrainerSettings
from flows.checks.recipe_checks import check_recipe
from flows.load import load_recipe
from flows.post_train import plan_expert, plan_post_train
from infra.errors import InputError
from tasks.durable.stage_identity import spec_content
from tasks.rl.spec import RlSettings
from tests.parts.recipe_parts import settings_of

pytestmark = pytest.mark.unit

PPO = "experts.reasoning.path.rl.algorithm.preset=ppo"


def said(*changes: str) -> str:
    """What `check` says to the smoke recipe with these changes; empty if it runs."""
    recipe = load_recipe("cpu-smoke", changes)
    try:
        check_recipe(recipe, plan_post_train(recipe))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("preset", ["ppo", "sao"])
def test_a_preset_with_a_critic_runs_as_it_is(preset: str) -> None:
    assert said(f"experts.reasoning.path.rl.algorithm.preset={preset}") == ""
    recipe = load_recipe("cpu-smoke", [f"experts.reasoning.path.rl.algorithm.preset={preset}"])
    reasoning, general = (
        settings_of(recipe.experts[name].path, RlSettings) for name in ("reasoning", "general")
    )
    assert reasoning.critic_role == CriticSettings()
    assert general.critic_role is None


def test_a_critic_may_train_otherwise_than_its_policy() -> None:
    own = "experts.reasoning.path.rl.critic.trainer"
    recipe = load_recipe("cpu-smoke", [PPO, f"{own}.micro_batch_tokens=77"])
    settings = settings_of(recipe.experts["reasoning"].path, RlSettings)
    critic = settings.critic_role
    assert critic is not None
    assert critic.trainer_beside(settings.trainer) == TrainerSettings(micro_batch_tokens=77)
    assert CriticSettings().trainer_beside(settings.trainer) is settings.trainer
    told = said(PPO, f"{own}.megatron.recompute_granularty=full")
    assert "critic, trainer.megatron.recompute_granularty" in told
    assert "did you mean recompute_granularity?" in told
    assert said(PPO, f"{own}.megatron.recompute_granularity=selective") == ""


def test_a_critic_s_micro_batches_change_no_digest() -> None:
    def content(*changes: str) -> object:
        recipe = load_recipe("cpu-smoke", [PPO, *changes])
        planned = {stage.name: stage for stage in plan_post_train(recipe)}
        return spec_content(planned["reasoning-rl"].spec)

    own = "experts.reasoning.path.rl.critic.trainer"
    first = content(f"{own}.micro_batch_tokens=77", f"{own}.megatron.bucket_size=5")
    assert first == content(f"{own}.micro_batch_tokens=78", f"{own}.megatron.bucket_size=6")
    assert first != content(f"{own}.precision=bf16", f"{own}.micro_batch_tokens=77")


def test_a_single_rollout_a_problem_is_enough_for_a_critic() -> None:
    assert (
        said(
            "experts.reasoning.path.rl.algorithm.preset=sao",
            "experts.reasoning.path.rl.group_size=1",
        )
        == ""
    )
    assert "group of one" in said("experts.reasoning.path.rl.group_size=1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            ["experts.reasoning.path.rl.critic={}"],
            "critic: nothing uses it, as advantage group has none",
        ),
        (
            ["resources.stages.reasoning-rl={critic: {}}"],
            "resources.stages.reasoning-rl.critic: the stage has none",
        ),
        (
            [PPO, "resources.stages.reasoning-rl={trainer: {dp: 2}}"],
            "its trainer and critic need 4 ranks together, resources.trainer_ranks is 2",
        ),
        (
            [PPO, "resources.stages.reasoning-rl={critic: {tp: 3}}", "resources.trainer_ranks=4"],
            "tp 3 does not divide",
        ),
        (
            [
                PPO,
                "experts.reasoning.path.rl.steps=3",
                "experts.reasoning.path.rl.critic={warmup_steps: 3}",
            ],
            "critic.warmup_steps: 3 of 3 steps leave none to the policy",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(changes: list[str], reason: str) -> None:
    found = said(*changes)
    assert "stage reasoning-rl" in found or "resources.stages.reasoning-rl" in found
    assert reason in found


def test_a_warm_up_that_is_longer_than_the_steps_of_the_policy_is_refused() -> None:
    """Of three steps it trains in the last, as the critic has the first two alone."""
    rl = "experts.reasoning.path.rl"
    changes = [PPO, f"{rl}.steps=3", f"{rl}.critic={{warmup_steps: 2}}"]
    changes += [f"{rl}.algorithm.mini_batches=1"]
    told = said(*changes, f"{rl}.optimizer.warmup_steps=2")
    assert "rl.optimizer.warmup_steps: is 2, longer than the stage, which has 1" in told
    assert said(*changes, f"{rl}.optimizer.warmup_steps=1") == ""


def test_the_plan_knows_how_many_ranks_a_critic_takes() -> None:
    changes = [PPO, "resources.stages.reasoning-rl={trainer: {dp: 2}, critic: {tp: 2}}"]
    by_name = {s.name: s for s in plan_expert(load_recipe("cpu-smoke", changes), "reasoning")}
    layout = by_name["reasoning-rl"].critic
    assert layout is not None
    assert (layout.tp, layout.dp) == (2, 1)
    assert by_name["reasoning-sft"].critic is None


def test_its_optimizer_is_the_policys_faster_or_its_own() -> None:
    policy = Optimizer(lr=2e-4, beta2=0.98, warmup_steps=3)
    assert CriticSettings().optimizer_beside(policy) == Optimizer(
        lr=1e-3, beta2=0.98, warmup_steps=3
    )
    own = Optimizer(lr=3e-3, decay="cosine")
    assert CriticSettings(optimizer=own).optimizer_beside(policy) == own
    with pytest.raises(ValidationError, match="lr_ratio scales the policy's optimizer"):
        CriticSettings(optimizer=own, lr_ratio=2.0)
    assert (
        CriticSettings.model_validate(CriticSettings(optimizer=own).model_dump()).optimizer == own
    )
