"""Models that rewards ask: their place in a plan, digests that follow them, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows.checks.memory.fit import memory_problems, planned_memory
from flows.checks.recipe_checks import check_recipe
from flows.checks.servers import inexact_roles, judge_cautions, served_problems
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from flows.recipe import Recipe
from infra.errors import InputError
from tests.parts.recipe_parts import the_last
from tests.parts.reward_models import with_head
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.unit

REWARDS = "experts.general.domain.rewards"
OPTIONS = '{prompt: "{question} {answer}", choices: {"Yes": 1, "No": 0}}'

JUDGE_ALONE = f"name: judge, outcome: true, options: {OPTIONS}"


def judge(model: str, more: str = "") -> str:
    term = f"{{name: judge, weight: 0.5, options: {OPTIONS}, served: {{model: {model}{more}}}}}"
    return f"{REWARDS}=[{{name: constraints, outcome: true}}, {term}]"


def recipe(*changes: str) -> Recipe:
    return load_recipe("cpu-smoke", the_last("resources.servers=3", *changes))


def digests(loaded: Recipe) -> dict[str, str]:
    return {n: i.digest for n, i in planned_identities(plan_post_train(loaded)).items()}


def refused(*changes: str) -> str:
    loaded = recipe(*changes)
    with pytest.raises(InputError) as raised:
        check_recipe(loaded, plan_post_train(loaded))
    return str(raised.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("judges") / "judge")


def test_a_model_of_the_recipe_is_an_input_of_the_stages_that_judge_by_it() -> None:
    loaded = recipe(judge("base"), "determinism=close")
    plan = {stage.name: stage for stage in plan_post_train(loaded)}
    check_recipe(loaded, list(plan.values()))
    asking = {name for name, stage in plan.items() if "role.judge" in stage.inputs}
    assert asking == {"general-rl", "unified-rl"}, "distill and evaluate ask outcomes alone"
    assert plan["general-rl"].inputs == {"model": "general-sft", "role.judge": "base"}


def test_an_external_judge_whose_calls_would_not_do_is_told_before() -> None:
    """Three steps of 4 problems with 8 rollouts each: 96 answers, asked about twice. As the outcome
    it also judges 5 held-out problems before, after the second step and at the end."""
    settings = "url: 'https://api.test', model: m, votes: 2, temperature: 1, pattern: '(1)'"

    def cautioned(more: str, options: str) -> list[str]:
        term = f"name: external-judge{more}, options: {{{options}, prompt: '{{answer}}'}}"
        others = "" if "outcome" in more else "{name: constraints, outcome: true}, "
        sizes = {"steps": 3, "problems_per_step": 4, "group_size": 8}
        changes = [f"experts.general.path.rl.{name}={n}" for name, n in sizes.items()]
        evaluate = "experts.general.path.rl.evaluate={every: 2, problems: 5}"
        loaded = recipe(f"{REWARDS}=[{others}{{{term}}}]", *changes, evaluate, "determinism=close")
        plan = {stage.name: stage for stage in plan_post_train(loaded)}
        return list(judge_cautions(plan["general-rl"]))

    (said,) = cautioned("", f"{settings}, max_calls: 191")
    assert "external-judge of general has 192 verdicts to give" in said
    assert "its `max_calls` is 191" in said
    assert not cautioned("", f"{settings}, max_calls: 192")
    (said,) = cautioned(", outcome: true", f"{settings}, max_calls: 192")
    assert "has 222 verdicts to give" in said
    assert not cautioned(", thinking: true", f"{settings}, max_calls: 1")


def test_a_folder_is_imported_once_and_its_weights_are_in_the_digests(folder: Path) -> None:
    loaded = recipe(judge(f"{folder}"))
    plan = [stage.name for stage in plan_post_train(loaded)]
    assert plan.count("role-judge") == 1
    assert plan.index("role-judge") < plan.index("general-rl")
    before = digests(loaded)
    other = tiny_model(folder.parent / "other", seed=1)
    assert _changed(before, digests(recipe(judge(f"{other}")))) == {
        "role-judge", "general-rl", "unified-distill", "unified-sft", "unified-rl", "evaluate",
    }  # fmt: skip
    (other / "moved").mkdir()
    same = folder.rename(other / "moved" / "judge")
    try:
        assert digests(recipe(judge(f"{same}"))) == before, "its path is in no digest"
    finally:
        same.rename(folder)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("resources.default.roles={judge: {servers: 2}}", False),
        (judge("base", ", fleet: {max_turns_per_server: 3}"), False),
        (judge("base", ", fleet: {sglang: {dtype: bfloat16}}"), True),
        (judge("base").replace("Yes", "Sure"), True),
    ],
)
def test_what_changes_a_verdict_is_in_the_digest_and_where_it_runs_is_not(
    change: str, again: bool
) -> None:
    before, after = digests(recipe(judge("base"))), digests(recipe(judge("base"), change))
    changed = _changed(before, after)
    assert ("general-rl" in changed) == again
    assert "general-sft" not in changed


@pytest.mark.parametrize(
    ("model", "models"),
    [("./judges/rm", ["judges/rm"]), (["./judges/rm", "./b/rm"], ["judges/rm", "b/rm"])],
)
def test_a_path_is_relative_to_the_recipe_and_a_name_is_a_stage(
    tmp_path: Path, model: str | list[str], models: list[str]
) -> None:
    model = [*model, "agent-reward"] if isinstance(model, list) else model
    term = {"name": "reward-model", "outcome": True, "served": {"model": model}}
    domain = {"rewards": [term]}
    written = {"extends": "cpu-smoke", "name": "mine", "experts": {"general": {"domain": domain}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(written))
    loaded = load_recipe(str(tmp_path / "mine.yaml"))
    merged = loaded.experts["general"].domain
    assert merged is not None
    served = merged.rewards[0].served
    assert served is not None
    named = ["agent-reward"] if isinstance(model, list) else []
    assert list(served.models) == [*(str(tmp_path / each) for each in models), *named]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([judge("base"), "resources.servers=2"], "2 servers and 1 of its roles, but resources"),
        (
            [judge("base"), "resources.default.roles={jugde: {servers: 1}}"],
            "resources.default.roles.jugde: no such role; roles are judge; did you mean `judge`?",
        ),
        ([judge("base", ", fleet: {external: ['http://h:1']}")], "servers that are not ours"),
        ([judge("base", ", fleet: {sglang: {is_embedding: true}}")], "reward `reward-model` sets"),
        ([judge("/nowhere/judge")], "/nowhere/judge is missing"),
        (
            [
                f"{REWARDS}=[{{{JUDGE_ALONE}, served: {{model: base}}}}]",
                "experts.general.path=[{admit: {}}]",
            ],
            "asks a served model, and this stage has no servers",
        ),
        ([judge("base").replace("{question}", "{reference.x}")], "its reference has no 'x'"),
    ],
)
def test_what_cannot_be_served_is_refused(changes: list[str], said: str) -> None:
    assert said in refused(*changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (judge("agent-rk"), "no stage before it makes it"),
        (judge("unified-rl"), "no stage before it makes it: name one of base"),
        (
            f"{REWARDS}=[{{name: constraints, outcome: true, served: {{model: base}}}}]",
            "only judge",
        ),
        (f"{REWARDS}=[{{name: judge, outcome: true, options: {OPTIONS}}}]", "served: is missing"),
    ],
)
def test_a_recipe_that_says_what_cannot_be_is_refused(change: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        plan_post_train(recipe(change))
    assert said in str(raised.value)


def test_rewards_of_one_role_ask_one_model() -> None:
    terms = [
        f"{{name: judge, label: of-{model}, outcome: {first}, options: {OPTIONS},"
        f" served: {{model: {model}}}}}"
        for first, model in (("true", "base"), ("false", "general-sft"))
    ]
    second = "experts.agent.domain.rewards"
    with pytest.raises(InputError, match="give one of them another"):
        plan_post_train(recipe(f"{REWARDS}=[{terms[0]}]", f"{second}=[{terms[0]}, {terms[1]}]"))


def test_memory_and_devices_of_roles_are_counted(folder: Path) -> None:
    with_devices = [
        judge(f"{folder}"),
        "resources.devices={memory_gb: 80, per_host: 2, kind: h100}",
        "resources.default.roles={judge: {tp_per_server: 2, device: h200}}",
    ]
    loaded = recipe(*with_devices)
    (line,) = [x for x in _check(loaded) if "device is 'h200'" in x]
    assert "resources name h100" in line
    other = "resources.other_devices=[{memory_gb: 0.000001, per_host: 2, kind: h200}]"
    loaded = recipe(*with_devices, other)
    plan = plan_post_train(loaded)
    roles = {(r.stage, r.role): r for r in planned_memory(loaded, plan)}
    held = roles["general-rl", "judge"]
    assert (held.num_devices, held.device) == (2, "h200")
    found = list(memory_problems(loaded, plan))
    assert any("stage general-rl: its judge needs" in line for line in found), found
    assert not any("its server needs" in line for line in found), "those have 80 GB"


SEVERAL = "name: reward-model, options: {combine: mean, disagreement_penalty: 0.5}"


def ensemble(*models: str, more: str = "") -> str:
    term = f"{{{SEVERAL}, weight: 0.5, served: {{model: [{', '.join(models)}]{more}}}}}"
    return f"{REWARDS}=[{{name: constraints, outcome: true}}, {term}]"


def test_each_of_several_reward_models_has_servers_and_memory_of_its_own(
    tmp_path: Path, folder: Path
) -> None:
    models = [str(with_head(folder, tmp_path / name, seed=n)) for n, name in enumerate("ab")]
    loaded = recipe(
        ensemble(*models),
        "resources.servers=4",
        "resources.devices={memory_gb: 80, per_host: 8, kind: h100}",
        "resources.default.roles={reward-model-2: {servers: 2}}",
        "determinism=close",
    )
    plan = {stage.name: stage for stage in plan_post_train(loaded)}
    check_recipe(loaded, list(plan.values()))
    asked = {
        "role.reward-model-1": "role-reward-model-1",
        "role.reward-model-2": "role-reward-model-2",
    }
    assert asked.items() <= plan["general-rl"].inputs.items()
    assert plan["role-reward-model-2"].spec.served_folder == models[1]
    held = {
        r.role: r for r in planned_memory(loaded, list(plan.values())) if r.stage == "general-rl"
    }
    assert [held[f"reward-model-{n}"].num_devices for n in (1, 2)] == [1, 2]
    said = refused(ensemble(*models), "resources.servers=2", "determinism=close")
    assert "2 of its roles, but resources" in said
    other = recipe(ensemble(models[1], models[0]), "resources.servers=4", "determinism=close")
    assert "general-rl" in _changed(digests(loaded), digests(other)), "their order is in the digest"


def test_reward_models_that_learn_the_same_are_refused_as_several() -> None:
    """Stages of one path have seeds of their own; first ones of two paths have the recipe's."""
    stage = "{reward: {steps: 2, optimizer: {lr: 1e-3}, data: {files: [pairs.jsonl]}}}"
    paths = [
        f"experts.agent.path=[{stage}, {stage}]",
        f"experts.general.path=[{stage}, {{rl: {{steps: 2, optimizer: {{lr: 1e-3}}}}}}]",
    ]

    def problems(*models: str) -> list[str]:
        loaded = recipe(*paths, ensemble(*models))
        return list(served_problems(loaded, plan_post_train(loaded)))

    assert not problems("agent-reward", "agent-reward-2")
    said = problems("agent-reward", "agent-reward-2", "general-reward")
    assert "reward-model asks agent-reward and general-reward, which learn the same" in said[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (ensemble("./a"), "a list names two models or more"),
        (ensemble("./a", "./b", "./a"), "/a is there twice"),
        (judge("[./a, ./b]"), "only reward-model asks several; name one for judge"),
        (
            f"{REWARDS}=[{{{SEVERAL}, outcome: true, served: {{model: ./a}}}}]",
            "options.combine: says what the scores of several models become",
        ),
        (
            f"{REWARDS}=[{{{SEVERAL}, outcome: true, served: {{model: [./a, ./b]}}}}]",
            "may leave less than 0, which is no outcome; write `combine: least`",
        ),
        (
            ensemble("./a", "./b").replace("combine: mean, ", ""),
            "disagreement_penalty: is taken off a mean",
        ),
    ],
)
def test_what_is_no_ensemble_is_refused(change: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        recipe(change)
    assert said in str(raised.value)


def test_a_head_is_not_promised_to_give_the_same_bits(tmp_path: Path, folder: Path) -> None:
    model = with_head(folder, tmp_path / "rm")
    term = f"{{name: reward-model, outcome: true, served: {{model: {model}}}}}"
    plan = {s.name: s for s in plan_post_train(recipe(f"{REWARDS}=[{term}]"))}
    assert "not tested to be batch-invariant" in next(inexact_roles(plan["general-rl"]))
    assert plan["general-rl"].roles["reward-model"].server_fleet.sglang == {"is_embedding": True}


def _check(loaded: Recipe) -> list[str]:
    try:
        check_recipe(loaded, plan_post_train(loaded))
    except InputError as error:
        return str(error).splitlines()
    return []


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after.get(name)}
