"""What a form asks for becomes a recipe, and what is wrong is said as `tributary check` says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.algorithms.spec import Algorithm
from flows.catalog import plan_of
from flows.command.recipes import save_recipe
from flows.load import load_recipe
from flows.page.form import Asked, asked_by_command, called, form_of, models_of, stages_of
from flows.running.chosen_stages import ChosenStages
from flows.running.new_run import new_run
from infra.errors import InputError
from tasks.rl.spec import RlSettings
from tests.parts.recipe_parts import settings_of

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]

SMOKE = load_recipe("cpu-smoke")


@pytest.mark.parametrize(
    "whole",
    ["cpu-smoke", SMOKE.model_dump(mode="json"), yaml.safe_dump(SMOKE.model_dump(mode="json"))],
    ids=["by name", "as JSON", "as YAML"],
)
def test_a_recipe_is_asked_for_by_name_or_whole(whole: str | dict[str, Any]) -> None:
    assert Asked(recipe=whole).resolved() == SMOKE
    changed = Asked(recipe=whole, seed="3", overrides="evaluate.problems=4\n\n# no more").resolved()
    assert changed == load_recipe("cpu-smoke", ["evaluate.problems=4", "seed=3"])


def test_a_preset_of_a_written_recipe_is_what_trains() -> None:
    text = yaml.safe_dump(yaml.safe_load((Path("flows/recipes/cpu-smoke.yaml")).read_text()))
    asked = Asked(recipe=text, overrides="unified.path.rl.algorithm={preset: gspo}")
    unified = asked.resolved().unified
    assert unified is not None
    assert settings_of(unified.path, RlSettings).algorithm == Algorithm(preset="gspo")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"recipe": "cpu-smok"}, "did you mean `cpu-smoke`"),
        ({"recipe": " "}, "choose one by its name"),
        ({"recipe": "just words"}, "neither the name of a recipe"),
        ({"recipe": "a: [1"}, "cannot be read as YAML"),
        ({"recipe": "cpu-smoke", "overrides": "seed"}, "write it as field.path=value"),
        ({"recipe": "cpu-smoke", "overrides": "seeed=1"}, "seeed: unknown field"),
        ({"recipe": {"name": "x", "experts": {}}}, "base: is missing"),
        ({"recipe": "cpu-smoke", "seed": "one"}, "seed: write a number of at most 18 digits"),
        ({"recipe": "cpu-smoke", "seed": "1" * 19}, "seed: write a number of at most 18 digits"),
        ({"recipe": "cpu-smoke", "seed": 1}, "seed: must be a text, got 1"),
        ({"recipe": ["cpu-smoke"]}, "recipe.*: must be a text"),
    ],
)
def test_what_is_wrong_is_said(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Asked.of(asked).resolved()


def test_a_commands_run_is_copied_as_a_short_form_while_its_recipe_has_a_name() -> None:
    asked = asked_by_command("cpu-smoke", ["seed=1", "evaluate.problems=4"], "mine")
    assert asked == {
        "recipe": "cpu-smoke",
        "overrides": "seed=1\nevaluate.problems=4",
        "name": "mine",
    }
    head = new_run(SMOKE, "expert", {"name": "agent"}, in_process=False, asked=asked).head()
    assert form_of(head) == {"expert": "agent", **asked}

    save_recipe("cpu-smoke", "other")
    asked = asked_by_command("other", [], "")
    head = new_run(SMOKE, "post-train", {}, in_process=False, asked=asked).head()
    assert form_of(head) == {"recipe": "other"}
    gone = head.model_copy(update={"asked": {"recipe": "removed"}})
    assert form_of(gone) == {"recipe": head.recipe}, "in full"


def test_a_file_of_a_recipes_name_is_asked_for_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cpu-smoke").write_text("extends: cpu-demo")
    assert asked_by_command("cpu-smoke", [], "") == asked_by_command("mine.yaml", [], "") == {}


def test_a_change_that_names_a_file_here_is_asked_for_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form's run begins in another folder."""
    monkeypatch.chdir(tmp_path)
    assert asked_by_command("cpu-smoke", ["hooks=[part.py]"], "") == {}
    assert asked_by_command("cpu-smoke", ["hooks=[/parts/part.py]"], "") != {}


def test_a_run_that_never_began_has_a_name() -> None:
    assert called({"recipe": "cpu-smoke", "name": ""}) == "cpu-smoke"
    assert called({"recipe": "cpu-smoke", "name": "mine"}) == "mine"
    assert called({"recipe": ["x"], "name": ""}) == called({"recipe": "a: 1", "name": ""})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"flow": "expert", "arguments": {}}, "`name` among the flow's arguments must be a text"),
        ({"flow": "distill-rounds", "arguments": {"expert": "agent"}}, "`rounds` .* a number"),
        ({"flow": "evaluate", "arguments": {"models": "x"}}, "`models` .* a mapping; got 'x'"),
        ({"flow": "post-train", "arguments": {"stages": {"until": "x"}}}, "until: unknown field"),
        ({"flow": "post-trian", "arguments": {}}, "no flow `post-trian` .* mean `post-train`"),
    ],
)
def test_arguments_of_a_replayed_flow_are_looked_at(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_of("replay", SMOKE, {"stage": "agent-rl", **arguments})


def test_models_are_lines_or_a_mapping() -> None:
    wanted = {"one": "/models/one", "two": "s3://bucket/a=b"}
    assert models_of("one=/models/one\n# later\n two = s3://bucket/a=b ") == wanted
    assert models_of(wanted) == wanted
    for wrong in ("one", "=x", "one=", "", "One=/x", "one=/x\none=/y"):
        with pytest.raises(InputError, match="models: "):
            models_of(wrong)


def test_stages_are_lines_or_a_mapping() -> None:
    lines = "until=agent-rl\nforce=base\nforce = agent-sft\naccept_code=true"
    chosen = ChosenStages(
        until_stage="agent-rl", force_stages=["base", "agent-sft"], accept_code=True
    )
    assert stages_of(lines) == stages_of(chosen.model_dump()) == chosen
    assert stages_of("") == stages_of({}) == ChosenStages()
    for wrong, said in {
        "untl=base": "`untl=base`: write from=STAGE, .* did you mean `until`",
        "until=": "`until=`: write from=STAGE",
        "accept_code=perhaps": "stages: accept_code: .*'perhaps'",
        "only=a\nuntil=b": "only_stage says where to begin and to end",
    }.items():
        with pytest.raises(InputError, match=said):
            stages_of(wrong)
    with pytest.raises(InputError, match="until: unknown field"):
        stages_of({"until": "base"})
