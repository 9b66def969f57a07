"""Paths of stages: what they may be, how they are written, and what replaces the earlier form."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import yaml

from flows.checks.recipe_checks import check_recipe
from flows.load import load_recipe, validate_recipe
from flows.plan import PlannedStage, versions_of
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from flows.recipe import Recipe
from infra.errors import InputError
from tasks.distill.spec import DistillSettings
from tasks.durable.stage_identity import spec_content
from tasks.rl.spec import RlSettings, RlSpec

pytestmark = pytest.mark.unit

SFT = {"steps": 3, "optimizer": {"lr": 2e-3}}
RL = {"steps": 2, "problems_per_step": 4, "optimizer": {"lr": 2e-4}}
RL_OF_SAVED = {"steps": 2, "optimizer": {"lr": 2e-4}}
DOMAIN = {
    "curriculum": {"name": "reasoning", "options": {}},
    "rewards": [{"name": "math", "outcome": True}],
}
SIZE = {"hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn_size": 128}


def written(path: Any, **fields: Any) -> dict[str, Any]:
    expert = {"domain": DOMAIN, "path": path}
    return {"name": "mine", "base": {"random": SIZE}, "experts": {"agent": expert}, **fields}


def recipe(*path: Any) -> Recipe:
    return validate_recipe(written(list(path)), "here")


def plan(*path: Any) -> dict[str, PlannedStage]:
    return {stage.name: stage for stage in plan_post_train(recipe(*path))}


@pytest.mark.parametrize(
    ("path", "stages", "scored"),
    [
        ([], [], []),
        ([{"rl": RL}], ["agent-rl"], ["agent"]),
        ([{"sft": SFT}], ["agent-sft"], ["agent"]),
        ([{"sft": SFT}, {"rl": RL}], ["agent-sft", "agent-rl"], ["agent-sft", "agent"]),
        ([{"rl": RL}, "rl"], ["agent-rl", "agent-rl-2"], ["agent-rl", "agent"]),
        ([{"sft": SFT}, "distill"], ["agent-sft", "agent-distill"], ["agent"]),
        (["rollout"], ["agent-rollout"], []),
        (
            [{"sft": SFT}, "rollout", {"offline": RL_OF_SAVED}],
            ["agent-sft", "agent-rollout", "agent-offline"],
            ["agent-sft", "agent"],
        ),
    ],
)
def test_any_path_is_a_recipe(path: list[Any], stages: list[str], scored: list[str]) -> None:
    made = recipe(*path)
    planned = plan_post_train(made)
    check_recipe(made, planned)
    assert [stage.name for stage in planned] == ["base", *stages, "evaluate"]
    assert list(planned[-1].inputs) == ["base", *scored]
    assert versions_of(planned).get("agent", []) == scored


def test_each_stage_trains_what_the_one_before_it_made() -> None:
    stages = plan({"sft": SFT}, {"rl": RL}, "rl", "distill", "sft", "rl")
    assert stages["agent-rl"].inputs == {"model": "agent-sft"}
    assert stages["agent-rl-2"].inputs == {"model": "agent-rl"}
    assert stages["agent-distill"].inputs == {"agent": "agent-rl-2"}
    assert stages["agent-sft-2"].inputs == {"model": "base", "data": "agent-distill"}
    assert stages["agent-rl-3"].inputs == {"model": "agent-sft-2"}
    starts = [s.spec.start for s in stages.values() if isinstance(s.spec, RlSpec)]
    each = RlSettings.model_validate(RL).most_problems
    assert starts == [0, each, 2 * each]


ADMIT = {"admit": {"problems": {"rl": 8, "distill": 4}}}


def test_stages_after_admit_draw_from_what_it_admitted() -> None:
    stages = plan({"sft": SFT}, ADMIT, {"rl": RL}, "rollout", "distill", {"sft": SFT}, "rl")
    assert stages["agent-sft"].inputs == {"model": "base"}
    assert stages["agent-admit"].inputs == {}
    given = {"admitted_problems": "agent-admit"}
    assert stages["agent-rl"].inputs == {"model": "agent-sft", **given}
    assert stages["agent-rollout"].inputs == {"model": "agent-rl", **given}
    assert stages["agent-distill"].inputs == {"agent": "agent-rl", **given}
    assert stages["agent-sft-2"].inputs == {"model": "base", "data": "agent-distill"}
    assert stages["agent-rl-2"].inputs == {"model": "agent-sft-2", **given}
    assert "admitted_problems" not in stages["evaluate"].inputs


def test_a_screen_asks_the_model_before_it_and_chooses_among_what_is_fit() -> None:
    screen = {"screen": {"problems": {"rl": 8}}}
    stages = plan({"sft": SFT}, ADMIT, screen, {"rl": RL}, screen, "rl")
    given = {"admitted_problems": "agent-admit"}
    assert stages["agent-screen"].inputs == {"model": "agent-sft", **given}
    assert stages["agent-rl"].inputs == {
        "model": "agent-sft",
        "admitted_problems": "agent-screen",
    }
    assert stages["agent-screen-2"].inputs == {"model": "agent-rl", **given}, "not of the pool"
    assert stages["agent-rl-2"].inputs == {
        "model": "agent-rl",
        "admitted_problems": "agent-screen-2",
    }
    alone = plan({"sft": SFT}, screen, {"rl": RL}, screen, "rl")
    assert alone["agent-screen-2"].inputs == {"model": "agent-rl"}


SCREEN = {"screen": {"problems": {"rl": 8}, "keep": ["moderate", "hard"], "most": 64}}
PHASES = [{"pools": ["moderate"], "until_step": 1}, {"pools": ["hard"], "group_size": 32}]
IN_PHASES = {**RL, "phases": PHASES}


def test_a_path_goes_from_one_pool_to_the_next_with_groups_of_its_own_size() -> None:
    two_stages = [
        SCREEN,
        {"rl": RL, "pools": {"agent-screen": ["moderate"]}},
        {"rl": {**RL, "group_size": 32}, "pools": {"agent-screen": ["hard", "moderate"]}},
        "rl",
        "screen",
    ]
    stages = plan({"sft": SFT}, ADMIT, *two_stages)
    drawn = {name: dict(stages[name].inputs) for name in stages if "agent-rl" in name}
    assert drawn == {
        "agent-rl": {"model": "agent-sft", "admitted_problems_of_pool_moderate": "agent-screen"},
        "agent-rl-2": {
            "model": "agent-rl",
            "admitted_problems_of_pool_hard_of_pool_moderate": "agent-screen",
        },
        "agent-rl-3": {"model": "agent-rl-2", "admitted_problems": "agent-screen"},
    }
    sizes = [stages[name].spec.policy for name in drawn]
    assert [policy and policy.group_size for policy in sizes] == [8, 32, 32]
    assert stages["agent-screen-2"].inputs["admitted_problems"] == "agent-admit"
    made = recipe({"sft": SFT}, *two_stages)
    assert validate_recipe(made.model_dump(mode="json"), "again") == made


def test_one_stage_may_go_from_pool_to_pool_and_keeps_its_identity_without() -> None:
    made = recipe({"sft": SFT}, SCREEN, {"rl": IN_PHASES})
    stage = {planned.name: planned for planned in plan_post_train(made)}["agent-rl"]
    assert stage.inputs == {"model": "agent-sft", "admitted_problems": "agent-screen"}
    assert spec_content(stage.spec)["settings"]["phases"][1]["group_size"] == 32
    assert validate_recipe(made.model_dump(mode="json"), "again") == made
    without = plan({"sft": SFT}, SCREEN, {"rl": RL})["agent-rl"]
    assert "phases" not in spec_content(without.spec)["settings"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            [SCREEN, {"rl": RL, "pools": {"agent-scren": ["hard"]}}],
            "path.2.rl: pools: no `screen` before it in its path is called 'agent-scren'; name one"
            " of agent-screen",
        ),
        ([{"rl": RL, "pools": {"agent-screen": ["hard"]}}], "one of none: put a `screen` before"),
        (["admit", {"rl": RL, "pools": {"agent-admit": ["hard"]}}], "is called 'agent-admit'"),
        (
            ["screen", {"rl": RL, "pools": {"agent-screen": ["hard"]}}],
            "agent-screen keeps moderate, not hard; write it into that stage's `keep`",
        ),
        ([SCREEN, {"rl": RL, "pools": {"agent-screen": ["easy"]}}], "'moderate', 'hard' or"),
        ([SCREEN, {"rl": RL, "pools": {"agent-screen": []}}], "at least one pool of agent-screen"),
        ([SCREEN, {"rl": RL, "pools": {"agent-screen": ["hard", "hard"]}}], "each once"),
        ([SCREEN, {"sft": SFT, "pools": {"agent-screen": ["hard"]}}], "of the split `sft`"),
        (
            ["distill", SCREEN, {"sft": SFT, "pools": {"agent-screen": ["hard"]}}],
            "path.3.sft: pools: it draws no problems of them; leave `pools` out",
        ),
        ([SCREEN, {"screen": {}, "pools": {"agent-screen": ["hard"]}}], "it draws no problems"),
        ([SCREEN, {"rl": RL, "pools": {"a": ["hard"], "b": ["hard"]}}], "at most 1 item"),
        ([{"rl": IN_PHASES}], "path.1.rl: phases: no `screen` before it in its path finds pools"),
        (
            ["screen", {"rl": IN_PHASES}],
            "path.2.rl: phases.1.pools: the stage has moderate, not hard; write it into the `keep`",
        ),
        (
            [SCREEN, {"rl": IN_PHASES, "pools": {"agent-screen": ["hard"]}}],
            "phases.0.pools: the stage has hard, not moderate",
        ),
    ],
)
def test_pools_that_no_stage_before_keeps_are_refused_by_name(path: list[Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        plan({"sft": SFT}, *path)
    assert said in str(refused.value)


def test_a_stage_is_another_if_other_problems_are_tried() -> None:
    def digests(**settings: Any) -> dict[str, str]:
        admit = {"admit": {"problems": {"rl": 8}, **settings}}
        planned = plan_post_train(recipe({"sft": SFT}, admit, {"rl": RL}))
        return {name: made.digest for name, made in planned_identities(planned).items()}

    before = digests()
    for changed in ({"problems": {"rl": 9}}, {"random_outcome": 0.2}, {"seconds": 5.0}):
        after = digests(**changed)
        again = {name for name in before if before[name] != after[name]}
        assert again == {"agent-admit", "agent-rl", "evaluate"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (["admit", {"sft": SFT}], "path.1.sft: it draws problems of the split `sft`"),
        (["screen", "distill"], "path.1.distill: it draws problems of the split `distill`"),
        (["admit", "distill"], "path.1.distill: it draws problems of the split `distill`"),
        (
            ["admit", {"rl": RL, "curriculum_options": {"levels": ["hard"]}}],
            "path.1.rl: agent-admit admitted problems of other curriculum options",
        ),
    ],
)
def test_a_stage_that_would_draw_problems_that_were_not_tried_is_refused(
    path: list[Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        plan(*path)
    assert said in str(refused.value)


def test_an_admit_between_distill_and_sft_leaves_the_data_to_it() -> None:
    stages = plan({"sft": SFT}, "distill", "admit", {"sft": SFT}, {"rl": RL})
    assert stages["agent-sft-2"].inputs == {"model": "base", "data": "agent-distill"}


def test_check_refuses_to_admit_from_a_curriculum_that_solves_nothing() -> None:
    made = recipe("admit", {"rl": RL})
    with pytest.raises(InputError) as refused:
        check_recipe(made, plan_post_train(made))
    assert "experts.agent.domain.curriculum: `admit` tries its problems" in str(refused.value)
    assert "`solution(problem)`" in str(refused.value)


def test_a_kind_alone_has_the_settings_of_the_last_of_its_kind() -> None:
    longer = {**RL, "steps": 9}
    made = recipe(
        {"rl": RL}, {"rl": longer}, "rl", {"rl": None, "curriculum_options": {"levels": 1}}
    )
    steps = [stage.model_dump()["rl"]["steps"] for stage in made.experts["agent"].path]
    assert steps == [2, 9, 9, 9]
    (stage,) = recipe("distill").experts["agent"].path
    assert stage.settings == DistillSettings()


def test_changed_options_last_until_they_are_changed_again() -> None:
    easy, hard = {"levels": ["easy"]}, {"levels": ["hard"]}
    stages = plan(
        {"rl": RL},
        {"rl": None, "curriculum_options": easy},
        "rl",
        {"rl": None, "curriculum_options": hard},
    )

    def levels(name: str) -> Any:
        (domain,) = stages[name].spec.model_dump()["domains"]
        return domain["curriculum"]["options"].get("levels")

    names = ["agent-rl", "agent-rl-2", "agent-rl-3", "agent-rl-4", "evaluate"]
    assert [levels(name) for name in names] == [None, ["easy"], ["easy"], ["hard"], None]


def test_a_path_comes_back_from_its_record_and_shows_only_what_was_written() -> None:
    made = recipe(
        {"sft": SFT}, {"rl": RL}, {"rl": None, "curriculum_options": {"levels": ["easy"]}}
    )
    assert Recipe.model_validate(made.model_dump(mode="json")) == made
    shown = made.model_dump(mode="json", exclude_defaults=True)["experts"]["agent"]["path"]
    assert shown == [
        {"sft": SFT},
        {"rl": RL},
        {"rl": RL, "curriculum_options": {"levels": ["easy"]}},
    ]


# The earlier form

OLD = """
    name: mine
    base: {random: {hidden_size: 64}}
    experts:
      agent:
        domain: {curriculum: {name: agent}, rewards: [{name: agent-answer, outcome: true}]}
        sft: &sft {steps: 3, optimizer: {lr: 2e-3}}
        rl: &rl {steps: 2, optimizer: {lr: 1e-5}}
        rounds: 2
        round_options: [{}, {levels: [easy, medium]}]
    distill: {problems: 7}
    unify: sft+opd
    unified:
      sft: *sft
      opd: {steps: 5, optimizer: {lr: 1.0e-4}}
      rl: *rl
"""


def test_an_earlier_recipe_is_refused_with_paths_to_paste(tmp_path: Any) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(textwrap.dedent(OLD))
    with pytest.raises(InputError) as caught:
        load_recipe(str(file))
    said = str(caught.value)
    assert "Leave `distill` and `unify` out" in said
    new = yaml.safe_load(textwrap.dedent(said[said.index("    experts:") :]))
    pasted = yaml.safe_load(textwrap.dedent(OLD))
    domain = pasted["experts"]["agent"]["domain"]
    pasted["experts"] = {"agent": {"domain": domain, **new["experts"]["agent"]}}
    pasted["unified"] = new["unified"]
    del pasted["distill"], pasted["unify"]
    file.write_text(yaml.safe_dump(pasted))
    stages = {stage.name: stage for stage in plan_post_train(load_recipe(str(file)))}
    assert [name for name in stages if name not in ("base", "evaluate")] == [
        "agent-sft", "agent-rl", "agent-distill", "agent-sft-2", "agent-rl-2", "agent-distill-2",
        "agent-sft-3", "agent-rl-3", "unified-distill", "unified-sft", "unified-opd", "unified-rl",
    ]  # fmt: skip
    for name in ("agent-distill", "agent-distill-2", "unified-distill"):
        assert stages[name].spec.model_dump()["settings"]["problems"] == 7
    (domain,) = stages["agent-rl-3"].spec.model_dump()["domains"]
    assert domain["curriculum"]["options"] == {"levels": ["easy", "medium"]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"distill": {}}, "Leave `distill` out"),
        ({"unify": "sft"}, "Leave `unify` out"),
        ({"unified": {"rl": RL}}, "unified:\n      path:\n      - rl: {steps: 2"),
    ],
)
def test_a_single_field_of_the_earlier_form_is_answered(fields: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        validate_recipe(written([{"sft": SFT}], **fields), "here")
    assert said in str(caught.value)


def test_saved_rollouts_are_of_the_model_that_learns_from_them() -> None:
    saved = plan({"sft": SFT}, "rollout", {"offline": RL_OF_SAVED})
    sampled = {"model": "agent-sft", "rollouts": "agent-rollout"}
    assert saved["agent-offline"].inputs == sampled
    with pytest.raises(InputError, match="no rollouts to train on; put `rollout` before it"):
        plan({"sft": SFT}, {"offline": RL_OF_SAVED})
    with pytest.raises(InputError, match="put `rollout` before it"):
        plan("rollout", {"rl": RL}, {"offline": RL_OF_SAVED})
    aged = {**RL_OF_SAVED, "algorithm": {"old_logprobs": "trainer"}}
    for settings, doubts in ((RL_OF_SAVED, 0), (aged, 1)):
        stages = plan("rollout", {"offline": settings})
        assert len(list(stages["agent-offline"].spec.cautions())) == doubts, "its data grow old"


def test_saved_rollouts_are_trained_on_at_the_temperature_that_they_were_sampled_at() -> None:
    cool: Any = {**RL_OF_SAVED, "algorithm": {"temperature": 0.8}}
    for sampled_at, settings, fits in ((0.8, cool, True), (1.0, cool, False)):
        made = recipe({"rollout": {"temperature": sampled_at}}, {"offline": settings})
        if fits:
            check_recipe(made, plan_post_train(made))
            continue
        with pytest.raises(
            InputError, match=r"temperature: is 0\.8, and agent-rollout samples at 1"
        ):
            check_recipe(made, plan_post_train(made))


def test_a_reward_model_of_the_same_path_is_named_by_its_stage() -> None:
    files = {"files": ["pairs.jsonl"]}
    learning = {"steps": 2, "optimizer": {"lr": 1e-3}, "data": files}
    stages = plan({"reward": learning}, {"sft": SFT}, {"preference": learning})
    assert stages["agent-reward"].inputs == stages["agent-sft"].inputs == {"model": "base"}
    assert not stages["agent-reward"].model
    assert stages["agent-preference"].inputs == {"model": "agent-sft"}
    assert stages["agent-preference"].scored_as == "agent"

    def judged_by(stage: str) -> dict[str, PlannedStage]:
        term = {"name": "reward-model", "served": {"model": stage}}
        data = written([{"sft": SFT}, {"reward": learning}, {"rl": RL}])
        rewards = [*DOMAIN["rewards"], term]
        data["experts"]["agent"]["domain"] = {**DOMAIN, "rewards": rewards}
        return {each.name: each for each in plan_post_train(validate_recipe(data, "here"))}

    used = judged_by("agent-reward")["agent-rl"].inputs
    assert used == {"model": "agent-sft", "role.reward-model": "agent-reward"}
    with pytest.raises(InputError, match="no stage before it makes it: name one of agent-reward;"):
        judged_by("agent-sft")


def test_reward_models_of_one_path_are_of_different_seeds() -> None:
    learning = {"steps": 2, "optimizer": {"lr": 1e-3}, "data": {"files": ["pairs.jsonl"]}}
    stages = plan({"reward": learning}, {"reward": learning}, {"sft": SFT}, {"reward": learning})
    names = ("sft", "reward", "reward-2", "reward-3")
    assert [stages[f"agent-{name}"].spec.seed for name in names] == [0, 0, 1, 2]
