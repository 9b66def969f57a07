"""Which stages of a plan a run does, and which it must find in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.catalog import plan_of
from flows.command.main import main
from flows.load import load_recipe
from flows.page.form import Asked
from flows.plan import PlannedStage
from flows.reasons import planned_identities
from flows.running.chosen_stages import ChosenStages, require_stored
from flows.running.new_run import require_same
from flows.running.records import RunHead, store_of
from infra.errors import InputError
from infra.store.artifacts import ArtifactStore

pytestmark = pytest.mark.unit

RECIPE = load_recipe("cpu-demo", ["unified.path.2.rl.keep_rollouts=true"])
AGENT = ["base", "agent-sft", "agent-rl"]


def chosen(**written: Any) -> list[PlannedStage]:
    return plan_of("post-train", RECIPE, ChosenStages(**written).arguments)


def run(plan: list[PlannedStage]) -> list[str]:
    return [stage.name for stage in plan if not stage.is_stored]


def stored(plan: list[PlannedStage]) -> list[str]:
    return [stage.name for stage in plan if stage.is_stored]


def test_until_is_the_stage_and_what_it_is_made_from() -> None:
    plan = chosen(until_stage="agent-rl")
    assert (run(plan), stored(plan)) == (AGENT, [])


def test_from_is_the_stage_and_what_is_made_from_it() -> None:
    plan = chosen(from_stage="agent-rl")
    assert run(plan) == ["agent-rl", "unified-distill", "unified-sft", "unified-rl", "evaluate"]
    others = ["reasoning-sft", "reasoning-rl", "agent-sft", "general-sft", "general-rl"]
    assert stored(plan) == ["base", *others]
    assert [stage.name for stage in plan] == [stage.name for stage in chosen()]


def test_from_and_until_run_what_lies_between() -> None:
    plan = chosen(from_stage="agent-sft", until_stage="unified-sft")
    assert run(plan) == ["agent-sft", "agent-rl", "unified-distill", "unified-sft"]
    assert "evaluate" not in stored(plan)


def test_only_is_one_stage_and_what_it_is_made_from_is_stored() -> None:
    plan = chosen(only_stage="agent-rl", force_stages=["agent-rl"])
    assert (run(plan), stored(plan)) == (["agent-rl"], ["base", "agent-sft"])
    assert [stage.name for stage in plan if stage.again] == ["agent-rl"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"from_stage": "agent-r"}, "--from agent-r: no such stage; there are base.*did you mean"),
        ({"until_stage": "x"}, "--until x: no such stage"),
        ({"from_stage": "agent-rl", "until_stage": "agent-sft"}, "does not come after"),
        ({"until_stage": "agent-rl", "force_stages": ["evaluate"]}, "it does base, agent-sft"),
        ({"force_stages": ["evaluat"]}, "--force evaluat: no such stage.*`evaluate`"),
    ],
)
def test_what_cannot_be_chosen_is_named(written: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        chosen(**written)


def test_only_stands_alone() -> None:
    with pytest.raises(ValidationError, match="only_stage says where to begin and to end"):
        ChosenStages(only_stage="base", until_stage="base")


def test_all_stages_leave_no_argument_so_a_form_of_defaults_is_the_same_run() -> None:
    assert ChosenStages().arguments == {}
    arguments = ChosenStages(until_stage="base").arguments
    assert arguments == {"stages": {"until_stage": "base"}}
    recipe = RECIPE.model_dump(mode="json")
    head = RunHead(run="r", flow="post-train", arguments=arguments, recipe=recipe, created=0)
    asked = Asked(recipe=recipe)
    require_same(head, "post-train", asked, arguments)
    with pytest.raises(InputError, match=r"arguments\.stages"):
        require_same(head, "post-train", asked, {})


def test_the_stages_of_an_expert_alone_can_be_chosen_too() -> None:
    plan = plan_of("expert", RECIPE, {"name": "agent", "stages": {"until_stage": "agent-sft"}})
    assert [stage.name for stage in plan] == ["base", "agent-sft"]


def test_a_replay_of_a_run_of_some_stages_repeats_none_of_them() -> None:
    part = ChosenStages(only_stage="unified-rl", force_stages=["unified-rl"]).arguments
    given = {"stage": "unified-rl", "flow": "post-train", "arguments": part}
    plan = plan_of("replay", RECIPE, given)
    assert (plan[-1].name, plan[-1].is_stored) == ("unified-rl-replay", False)
    assert not any(stage.again for stage in plan)


def test_what_is_not_in_the_store_is_listed_with_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    plan = chosen(only_stage="agent-rl")
    store = ArtifactStore(store_of(RECIPE.storage), tmp_path / "cache")
    (tmp_path / "made").mkdir()
    identities = planned_identities(plan)
    for name in ("base", "agent-sft"):
        with pytest.raises(InputError, match="agent-sft: never run before") as refused:
            require_stored(RECIPE, plan)
        assert ("base: never run before" in str(refused.value)) == (name == "base")
        identity = identities[name]
        store.commit(
            identity.kind, identity.digest, 1, tmp_path / "made", identity=identity.content,
            inputs=identity.inputs, code=identity.code.model_dump(), metrics={}, seeds={},
            mlflow_run_id="", seconds=1.0,
        )  # fmt: skip
    require_stored(RECIPE, plan)
    with pytest.raises(SystemExit) as ended:
        main(["run", "cpu-demo", "--from", "unified-rl", "--in-process"])
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert [line.split(":")[0].strip() for line in said[1:-1]] == [
        "reasoning-sft", "reasoning-rl", "agent-rl", "general-sft", "general-rl",
        "unified-distill", "unified-sft",
    ]  # fmt: skip
    assert "without --from and --only" in said[-1]
