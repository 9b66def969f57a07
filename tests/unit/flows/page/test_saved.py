"""Recipes under names: saved whole, replaced, removed, listed, found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flows.command.main import main
from flows.command.recipes import known_recipes, remove_recipe, save_recipe
from flows.load import load_recipe, recipe_names
from infra.errors import InputError

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]


def test_a_saved_recipe_does_not_depend_on_its_file(tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text("")
    file = tmp_path / "recipe.yaml"
    file.write_text("extends: cpu-smoke\nname: mine\nhooks: [hook.py]\n")
    saved = save_recipe(str(file), changes=["seed=5"])
    file.unlink()
    found = load_recipe("mine")
    assert (saved.name, saved.is_new) == ("mine", True)
    assert (found.name, found.seed, found.hooks) == ("mine", 5, [str(tmp_path / "hook.py")])
    assert found.experts == load_recipe("cpu-smoke").experts


def test_saving_again_replaces_and_says_what_differs() -> None:
    save_recipe("cpu-smoke", "mine")
    again = save_recipe("cpu-smoke", "mine", ["seed=1"])
    assert (again.is_new, [str(each) for each in again.changed]) == (False, ["seed: 0 -> 1"])
    assert save_recipe("mine").changed == []
    assert load_recipe("mine").seed == 1


@pytest.mark.parametrize("text", ["a: [", "name: mine\nextends: gone.yaml\n", "\xff"])
def test_one_that_cannot_be_read_any_more_is_listed_replaced_and_removed(text: str) -> None:
    save_recipe("cpu-smoke", "other")
    file = save_recipe("cpu-smoke", "mine").file
    file.write_bytes(text.encode("latin-1"))
    assert {"mine", "other"} <= {known.name for known in known_recipes()}
    assert load_recipe("other").name == "other"
    assert save_recipe("cpu-smoke", "mine").is_new
    assert load_recipe("mine").name == "mine"
    file.write_bytes(text.encode("latin-1"))
    remove_recipe("mine")
    assert "mine" not in recipe_names()


def test_a_shipped_name_stays_what_it_is() -> None:
    for name in ("", "cpu-demo"):
        with pytest.raises(InputError, match="name of a shipped recipe"):
            save_recipe("cpu-smoke", name)
    with pytest.raises(InputError, match="cannot be removed"):
        remove_recipe("cpu-demo")


def test_a_recipe_with_errors_is_not_saved() -> None:
    with pytest.raises(InputError, match="unknown field"):
        save_recipe("cpu-smoke", "mine", ["seeed=1"])
    with pytest.raises(InputError, match="name"):
        save_recipe("cpu-smoke", "../mine")
    assert "mine" not in recipe_names()


def test_one_that_is_not_there_cannot_be_removed() -> None:
    save_recipe("cpu-smoke", "mine")
    with pytest.raises(InputError, match=r"saved: mine; did you mean `mine`"):
        remove_recipe("mien")
    with pytest.raises(InputError):
        remove_recipe("../recipes/mine")
    remove_recipe("mine")
    assert not any(known.name == "mine" for known in known_recipes())


def test_the_commands_save_list_and_remove(capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert not ended.value.code
        return capsys.readouterr().out

    assert "tributary run mine" in call("save", "cpu-smoke", "mine", "--set", "seed=2")
    listed = json.loads(call("recipes", "--json"))
    (mine,) = [one for one in listed if not one["shipped"]]
    assert mine["name"] == "mine"
    assert os.environ["TRIBUTARY_HOME"] in mine["file"]
    assert "mine" not in call("recipes", "--remove", "mine")
