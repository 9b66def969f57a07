"""The recipe as stages."""

from __future__ import annotations

import pytest

from flows.catalog import FLOWS, plan_of
from flows.checks.engines import algorithm_problems, trainer_problems, value_problems
from flows.checks.servers import replay_problems
from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from infra.errors import InputError
from tasks.evaluate.spec import EvaluateSpec
from tasks.rl.spec import RlSettings
from tasks.sft.spec import SftSpec

pytestmark = pytest.mark.unit

ARGUMENTS = {
    "post-train": {},
    "expert": {"name": "agent"},
    "distill-rounds": {"expert": "agent", "rounds": 2},
    "evaluate": {"models": {"one": "/models/one", "two": "/models/two"}},
    "replay": {"stage": "unified-rl", "flow": "post-train", "arguments": {}},
}
KEPT = "unified.path.2.rl.keep_rollouts=true"


def _plan(flow: str = "post-train") -> dict[str, PlannedStage]:
    stages = plan_of(flow, load_recipe("cpu-demo", [KEPT]), ARGUMENTS[flow])
    return {stage.name: stage for stage in stages}


@pytest.mark.parametrize("flow", FLOWS)
def test_each_stage_stands_after_its_inputs(flow: str) -> None:
    seen: set[str] = set()
    for stage in _plan(flow).values():
        assert set(stage.inputs.values()) <= seen
        seen.add(stage.name)


def test_the_recipe_is_expert_then_unified() -> None:
    assert list(_plan()) == [
        "base", "reasoning-sft", "reasoning-rl", "agent-sft", "agent-rl", "general-sft",
        "general-rl", "unified-distill", "unified-sft", "unified-rl", "evaluate",
    ]  # fmt: skip


def test_the_unified_model_starts_from_the_base_on_distilled_data() -> None:
    stage = _plan()["unified-sft"]
    assert stage.inputs == {"model": "base", "data": "unified-distill"}
    assert isinstance(stage.spec, SftSpec)
    assert stage.spec.curriculum is None


def test_models_are_scored_under_the_names_of_the_report() -> None:
    stage = _plan()["evaluate"]
    assert set(stage.inputs) == {
        "base", "reasoning-sft", "reasoning", "agent-sft", "agent", "general-sft", "general",
        "unified-sft", "unified",
    }  # fmt: skip
    assert stage.inputs["agent"] == "agent-rl"
    assert isinstance(stage.spec, EvaluateSpec)
    assert stage.spec.nothink == ["unified"]
    assert stage.spec.home["agent"] == ["agent"]
    assert stage.spec.home["base"] == ["reasoning", "agent", "general"]


def test_rounds_distill_from_the_last_expert_into_a_fresh_start_from_the_base() -> None:
    plan = _plan("distill-rounds")
    assert plan["agent-distill-2"].inputs == {"agent": "agent-rl-2"}
    assert plan["agent-sft-3"].inputs == {"model": "base", "data": "agent-distill-2"}
    assert plan["agent-rl-3"].inputs == {"model": "agent-sft-3"}
    assert plan["evaluate"].inputs["agent"] == "agent-rl-3"


def test_resources_are_found_by_stage_name() -> None:
    plan = _plan()
    assert plan["unified-sft"].resources.trainer.dp == 2
    assert plan["agent-sft"].resources.trainer.dp == 1


def test_resources_do_not_enter_a_spec() -> None:
    changed = load_recipe("cpu-demo", ["resources.stages.unified-sft.trainer.dp=4"])
    before = plan_post_train(load_recipe("cpu-demo"))
    assert [s.spec for s in plan_post_train(changed)] == [s.spec for s in before]


def test_an_unknown_expert_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean `agent`"):
        plan_of("expert", load_recipe("cpu-demo"), {"name": "agnet"})


def test_without_a_unified_model_the_recipe_ends_with_its_experts() -> None:
    stages = {s.name: s for s in plan_post_train(load_recipe("learning-study"))}
    assert not [name for name in stages if name.startswith(("unified", "distill"))]
    assert stages["ppo-rl"].inputs == {"model": "ppo-sft"}
    spec = stages["evaluate"].spec
    assert isinstance(spec, EvaluateSpec)
    assert [domain.name for domain in spec.domains] == ["reasoning"]
    assert spec.home["base"] == spec.home["ppo-sft"] == spec.home["grpo"] == ["reasoning"]
    assert spec.nothink == []


def test_variants_of_one_expert_share_their_cold_start() -> None:
    """Equal spec and input make equal digests: the stage runs once."""
    stages = {s.name: s for s in plan_post_train(load_recipe("learning-study"))}
    cold = [stage for name, stage in stages.items() if name.endswith("-sft")]
    assert len(cold) == 8
    assert all(stage.spec == cold[0].spec and stage.inputs == {"model": "base"} for stage in cold)
    specs = [stage.spec for name, stage in stages.items() if name.endswith("-rl")]
    assert len({spec.model_dump_json() for spec in specs}) == 8


def test_every_preset_of_the_study_samples_as_many_rollouts() -> None:
    for expert in load_recipe("learning-study").experts.values():
        rl = expert.path[1].settings
        assert isinstance(rl, RlSettings)
        drawn = rl.problems_per_step, rl.group_size, rl.steps
        assert (*drawn, rl.oversample, rl.refill_rounds) == (24, 8, 20, 1.0, 0)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("routing_replay: trainer", ["there is no such pass; set old_logprobs to trainer"]),
        ("routing_replay: engine", []),
        ("routing_replay: trainer, old_logprobs: trainer", []),
    ],
)
def test_a_routing_is_replayed_that_a_pass_of_the_trainer_or_the_engine_chose(
    written: str, said: list[str]
) -> None:
    recipe = load_recipe("cpu-smoke", [f"unified.path.rl.algorithm={{{written}}}"])
    found = [line for stage in plan_post_train(recipe) for line in algorithm_problems(stage)]
    assert len(found) == len(said)
    assert all(wanted in line for wanted, line in zip(said, found, strict=True)), found


def test_only_a_mixture_of_experts_has_a_routing_to_replay() -> None:
    replay = "unified.path.rl.algorithm={old_logprobs: trainer, routing_replay: trainer}"
    for experts, is_refused in ((0, True), (4, False)):
        changes = [replay, *([f"base.random.experts={experts}"] if experts else [])]
        recipe = load_recipe("cpu-smoke", changes)
        plan = plan_post_train(recipe)
        found = [line for stage in plan for line in trainer_problems(recipe, stage)]
        assert any("routing_replay needs a mixture" in line for line in found) == is_refused, found


@pytest.mark.parametrize(
    ("size", "algorithm", "said"),
    [
        (1, "{}", "stage agent-offline: algorithm.advantage: group compares the rollouts"),
        (1, "{preset: reinforce++}", None),
        (2, "{mini_batches: 8}", "offline.algorithm.mini_batches: is 8, but a step has 4 samples"),
        (16, "{mini_batches: 32}", None),
    ],
)
def test_saved_groups_are_as_large_as_their_rollout_made_them(
    size: int, algorithm: str, said: str | None
) -> None:
    offline = f"{{steps: 2, problems_per_step: 2, optimizer: {{lr: 1e-3}}, algorithm: {algorithm}}}"
    path = f"[{{rollout: {{problems: 4, group_size: {size}}}}}, {{offline: {offline}}}]"
    recipe = load_recipe("cpu-smoke", [f"experts.agent.path={path}"])
    plan = plan_post_train(recipe)
    found = [*value_problems(recipe, plan), *(x for s in plan for x in algorithm_problems(s))]
    assert [said in line for line in found] == [True] * (said is not None), found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("external=[http://127.0.0.1:30000]", "those of fleet.external are not asked"),
        ("sglang={chunked_prefill_size: -1}", "-1 gives it no room"),
        ("sglang={chunked_prefill_size: 64}", None),
    ],
)
def test_servers_that_cannot_say_their_experts_are_refused(change: str, said: str | None) -> None:
    changes = ["algorithm={routing_replay: engine}", f"fleet.{change}"]
    recipe = load_recipe("cpu-smoke", [f"unified.path.rl.{each}" for each in changes])
    found = [line for stage in plan_post_train(recipe) for line in replay_problems(stage)]
    assert len(found) == (said is not None)
    assert all("stage unified-rl" in line and str(said) in line for line in found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["external=[http://127.0.0.1:30000]"], "those of fleet.external are not asked"),
        (["sglang={enable_deterministic_inference: true}"], "mode has none on a GPU"),
        ([], None),
    ],
)
def test_servers_that_cannot_say_what_they_kept_are_refused(
    changes: list[str], said: str | None
) -> None:
    every = ["algorithm={keep: {min_p: 0.1}}", *(f"fleet.{change}" for change in changes)]
    recipe = load_recipe("cpu-smoke", [f"unified.path.rl.{each}" for each in every])
    found = [line for stage in plan_post_train(recipe) for line in replay_problems(stage)]
    assert len(found) == (said is not None)
    assert all("stage unified-rl: algorithm.keep" in line and str(said) in line for line in found)
