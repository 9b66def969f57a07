"""A flow run that goes on with a run on record is asked for the same recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.command.recipes import save_recipe
from flows.load import load_recipe
from flows.page.form import Asked
from flows.running.new_run import new_run, require_same
from flows.running.records import RunHead
from infra.errors import InputError

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))


def _whole(*changes: str) -> Asked:
    return Asked(recipe=load_recipe("cpu-smoke", changes).model_dump(mode="json"))


def _begun(asked: Asked) -> RunHead:
    recipe, by_name = asked.resolved(), asked.by_name
    arguments = {"name": "agent"}
    return new_run(recipe, "expert", arguments, in_process=False, asked=by_name).head()


def test_what_differs_from_the_record_is_refused_by_name() -> None:
    head = _begun(_whole())
    require_same(head, "expert", _whole(), {"name": "agent"})
    changed = _whole("seed=1", "experts.agent.path.rl.optimizer.lr=1e-4")
    with pytest.raises(InputError) as caught:
        require_same(head, "expert", changed, {"name": "general"})
    said = str(caught.value)
    assert f"run {head.run}" in said
    assert "\n  seed: 0 -> 1\n" in said
    assert "\n  experts.agent.path.1.rl.optimizer.lr: 0.0002 -> 0.0001\n" in said
    assert "\n  arguments.name: 'agent' -> 'general'\n" in said


def test_an_edit_of_a_copy_that_asks_by_name_is_refused_too() -> None:
    head = _begun(Asked(recipe="cpu-smoke", seed="1"))
    require_same(head, "expert", Asked(recipe="cpu-smoke", seed="1"), {"name": "agent"})
    with pytest.raises(InputError, match="seed: 1 -> 2"):
        require_same(head, "expert", Asked(recipe="cpu-smoke", seed="2"), {"name": "agent"})


def test_a_run_keeps_the_recipe_that_it_began_with_when_the_name_is_saved_anew() -> None:
    save_recipe("cpu-smoke", "mine")
    head = _begun(Asked(recipe="mine"))
    save_recipe("cpu-smoke", "mine", ["seed=7"])
    require_same(head, "expert", Asked(recipe="mine"), {"name": "agent"})
    assert head.recipe["seed"] == 0


def test_a_hub_model_that_was_pinned_for_the_record_is_asked_for_again_as_it_was_written() -> None:
    commit, recipe = "3f" * 20, _whole()
    models = {"one": f"hf:lab/one@{commit}", "own": "/models/own"}
    head = new_run(recipe.resolved(), "evaluate", {"models": models}, in_process=False).head()
    asked = {"one": "hf:lab/one", "own": "/models/own"}
    require_same(head, "evaluate", recipe, {"models": asked})
    for changed in ({"own": "/models/other"}, {"one": f"hf:lab/one@{'0' * 40}"}):
        with pytest.raises(InputError, match=rf"arguments\.models\.{next(iter(changed))}: "):
            require_same(head, "evaluate", recipe, {"models": asked | changed})


def test_two_runs_of_one_second_never_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["aaaa", "aaaa", "bbbb"])
    named = "flows.running.new_run._new_name"
    monkeypatch.setattr(named, lambda of, _: f"{of}-20170714-024000-{next(drawn)}")
    made = [new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=False) for _ in "12"]
    names = [f"cpu-smoke-20170714-024000-{end}" for end in ("aaaa", "bbbb")]
    assert [run.run for run in made] == [run.head().run for run in made] == names
