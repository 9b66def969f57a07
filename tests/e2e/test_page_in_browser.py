"""Prefect's page in a real browser: a recipe of one's own, started with another seed."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from flows.load import load_recipe
from tests.parts.machine import STORE, Machine
from tests.parts.page import Page
from tests.parts.prefect_form import Tab, chromium, opened_tab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine"),
]

NAME = "small"


@pytest.fixture
def small(machine: Machine, tmp_path: Path) -> str:
    """The name of a saved recipe: one expert, barely taught."""
    tree = load_recipe("cpu-smoke", [f"storage.root={STORE}"]).model_dump(mode="json")
    expert = tree["experts"]["reasoning"]
    sft = {**expert["path"][0]["sft"], "steps": 4, "demonstrations": 64}
    expert = {**expert, "path": [{"sft": sft}]}
    tree |= {"name": NAME, "experts": {"reasoning": expert}, "unified": None}
    tree |= {"evaluate": {"problems": 2, "samples": 1}}
    tree["resources"] = {**tree["resources"], "stages": {}}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(tree))
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
        tab.fill("seed", "1")
        tab.submit_until(lambda: page.count() == before + 1)
        assert (tab.clicks, tab.filled) == (4, 1)

    flow_run = page.newest()
    assert page.ended(flow_run["id"], 400)[0] == "COMPLETED"
    (run,) = machine.runs(small)
    assert machine.recorded(run, "recipe.json")["recipe"]["seed"] == 1
    ended = page.flow_run(flow_run["id"])
    assert re.search(r"(^|; )reasoning [01]\.\d\d$", ended["state"]["message"])
    assert ended["name"] == f"{small} seed 1"
    assert {small, "seed 1"} <= set(ended["tags"])
    _assert_stages_say_what_became_of_them(page, ended)
    _assert_artifacts_are_few_and_their_links_work(machine, page, ended)
    assert max(map(len, page.log(ended["id"]))) < 400
    assert {f"{run}/{stage}" for stage in ("base", "reasoning-sft", "evaluate")} <= _ray(machine)

    with sound_tab() as tab:
        tab.open(page.link(f"runs/flow-run/{ended['id']}"))
        tab.wait_for_text(f"{small} seed 1")


def test_what_is_wrong_is_refused_in_place_or_at_once(machine: Machine, page: Page) -> None:
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

    given = {"recipe": "cpu-smoke", "overrides": "unified.path.rl.stepz=2"}
    runs = machine.runs("cpu-smoke")
    made = page.submit("post-train", given).raise_for_status().json()["id"]
    state, message = page.ended(made, 120)
    assert state == "FAILED"
    assert "unified.path.2.rl.stepz: unknown field; did you mean `steps`?" in message
    assert machine.runs("cpu-smoke") == runs


def _assert_stages_say_what_became_of_them(page: Page, flow_run: dict[str, Any]) -> None:
    said = {task["name"]: task["state"]["message"] for task in page.task_runs(flow_run["id"])}
    assert said["base"].endswith(" parameters")
    assert re.fullmatch(r"loss \d\.\d+ after 4 steps", said["reasoning-sft"])
    assert re.search(r"(^|; )base [01]\.\d\d, reasoning [01]\.\d\d$", said["evaluate"])


def _assert_artifacts_are_few_and_their_links_work(
    machine: Machine, page: Page, flow_run: dict[str, Any]
) -> None:
    found = page.artifacts(flow_run["id"])
    stages = ["stage-base", "stage-evaluate", "stage-reasoning-sft"]
    assert sorted(artifact["key"] for artifact in found) == ["run", *stages]
    links = {
        link for artifact in found for link in re.findall(r"\]\((http[^)]+)\)", artifact["data"])
    }
    assert len(links) > len(stages)
    assert flow_run["id"] not in json.dumps(sorted(links))
    for link in links:
        asked = httpx.get(link, timeout=60, follow_redirects=True, headers=machine.basic)
        assert asked.is_success, link


def _ray(machine: Machine) -> set[str]:
    """What people read of each job on Ray's page."""
    jobs = httpx.get(
        f"http://127.0.0.1:{machine.port('ray_dashboard')}/api/jobs/",
        timeout=60,
        headers=machine.bearer,
    )
    names = {job["metadata"].get("job_name", "") for job in jobs.raise_for_status().json()}
    assert all(
        job["submission_id"].replace("--", "/", 1).startswith(job["metadata"]["job_name"])
        for job in jobs.json()
        if job["metadata"].get("job_name")
    )
    return names
