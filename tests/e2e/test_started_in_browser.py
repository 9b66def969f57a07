"""Prefect's page in a real browser: a recipe of one's own, started with another seed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from flows.load import load_recipe
from tests.parts.machine import SMOKE, Machine
from tests.parts.page import Page, check_shown
from tests.parts.prefect_form import Tab, chromium, opened_tab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine"),
]

NAME = "small"


@pytest.fixture
def small(machine: Machine, tmp_path: Path) -> str:
    """The name of a saved recipe: `cpu-smoke` with one training, whose stages are stored where that
    ran under seed 0, barely evaluated."""
    tree = load_recipe("cpu-smoke", SMOKE).model_dump(mode="json")
    for name, expert in tree["experts"].items():
        expert["path"] = expert["path"][: name == "reasoning"]
    tree |= {"name": NAME, "seed": 1, "unified": None}
    tree |= {"evaluate": {"problems": 2, "samples": 1}}
    tree["resources"] = {**tree["resources"], "stages": {}}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    machine.call("save", str(file))
    return NAME


@contextmanager
def sound_tab() -> Generator[Tab]:
    """One whose console tells of no error."""
    with opened_tab() as tab:
        yield tab
        assert tab.errors == []


def test_a_saved_recipe_is_started_with_another_seed_in_four_clicks(
    machine: Machine, page: Page, small: str
) -> None:
    with sound_tab() as tab:
        tab.open_form(page.form("post-train"))
        before = page.count()
        tab.choose("recipe", small)
        tab.fill("seed", "0")
        tab.submit_until(lambda: page.count() == before + 1)
        assert (tab.clicks, tab.filled) == (4, 1)

    flow_run = page.newest()["id"]
    kind, message = page.ended(flow_run, 300)
    assert kind == "COMPLETED", message
    (run,) = machine.runs(small)
    assert machine.recorded(run, "recipe.json")["recipe"]["seed"] == 0
    assert page.flow_run(flow_run)["name"] == f"{small} seed 0"
    assert {small, "seed 0"} <= set(page.flow_run(flow_run)["tags"])
    check_shown(machine, page, flow_run, run, {"evaluate": r"\b[01]\.\d\d"})

    with sound_tab() as tab:
        tab.open(page.link(f"runs/flow-run/{flow_run}"))
        tab.wait_for_text(f"{small} seed 0")


def test_what_is_wrong_is_refused_in_place(page: Page) -> None:
    before = page.count()
    with sound_tab() as tab:
        tab.open_form(page.form("post-train"))
        tab.fill("seed", "one")
        tab.fill("name", "My run")
        tab.submit()
        tab.wait_for_text("'recipe' is a required property")
        tab.wait_for_text("'one' is not a 'number of at most 18 digits'")
        tab.wait_for_text("'My run' is not a 'name of small letters, digits and `-`'")
        where = "e => e.getBoundingClientRect().top"
        missing = tab.page.get_by_text("'recipe' is a required property").first
        assert 0 < missing.evaluate(where) < 900, "it stands on one screen with Submit"
    assert page.count() == before
