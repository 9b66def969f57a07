"""What Prefect's page refuses, and a run that it suspends, resumes, cancels and retries."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.load import load_recipe
from tests.parts.machine import STORE, Machine, until
from tests.parts.page import Page

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

UNHURRIED = Path(__file__).with_name("unhurried.py")


def test_a_recipe_of_a_wrong_name_is_refused_before_a_flow_run_exists(page: Page) -> None:
    before = page.count()
    refused = page.submit("post-train", {"recipe": "cpu-smok"})
    assert refused.status_code in (409, 422)
    assert "cpu-smok" in refused.text
    assert page.count() == before


def test_a_recipe_that_cannot_work_fails_before_any_stage(
    machine: Machine, page: Page, smoke: dict[str, Any]
) -> None:
    odd = {**smoke["resources"], "trainer_ranks": 3}
    odd["stages"] = {**odd["stages"], "unified-sft": {"trainer": {"tp": 3}}}
    made = page.submit("post-train", {"recipe": {**smoke, "resources": odd}})
    assert made.is_success, made.text
    kind, message = page.ended(made.json()["id"], 120)
    assert kind == "FAILED"
    assert "tp 3" in message
    assert "unified-sft" in message


def _processes(machine: Machine, *of: str) -> set[int]:
    """Processes of this machine's flows (`prefect.engine`) or stage jobs (`tasks.durable.job`)."""
    home = machine.env["TRIBUTARY_HOME"]
    found: set[int] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            ours = process.environ().get("TRIBUTARY_HOME") == home
            if ours and any(name in line for name in of):
                found.add(process.pid)
    return found


def _flows(machine: Machine) -> set[int]:
    return _processes(machine, "prefect.engine")


def _is_idle(machine: Machine) -> bool:
    return not _processes(machine, "prefect.engine", "tasks.durable.job")


@pytest.mark.long
def test_a_run_is_suspended_resumed_cancelled_and_retried_by_the_page(
    machine: Machine, page: Page
) -> None:
    """One run, one process at a time; the stage's job goes on while nobody looks on."""
    changes = [
        f"storage.root={STORE}",
        "name=endless",
        "experts.reasoning.path.rl.steps=2000",
        "experts.reasoning.path.rl.checkpoint_every=50",
        f"hooks=[{UNHURRIED}]",
        "experts.reasoning.domain.rewards.1.name=unhurried:Unhurried",
    ]
    recipe = load_recipe("cpu-smoke", changes)
    given = {"recipe": recipe.model_dump(mode="json"), "expert": "reasoning"}
    flow_run = page.submit("expert", given).raise_for_status().json()["id"]

    def rl() -> dict[str, Any]:
        return machine.stage("endless", "reasoning-rl") or {"done": 0, "state": ""}

    def is_beyond(step: int) -> bool:
        return rl()["state"] == "running" and rl()["done"] >= step

    def steps_more(count: int) -> None:
        wanted = rl()["done"] + count
        until(lambda: is_beyond(wanted) or page.state(flow_run) in ("FAILED", "CRASHED"), 300)
        assert is_beyond(wanted)

    until(lambda: bool(machine.run_id("endless")), 120)
    run = machine.run_id("endless")
    steps_more(2)
    job, first = rl()["job"], _flows(machine)

    page.suspend(flow_run)
    until(lambda: not _flows(machine), 60)
    assert _processes(machine, "tasks.durable.job"), "its job goes on"
    assert page.state(flow_run) == "PAUSED"
    page.resume(flow_run)
    steps_more(1)
    second = _flows(machine)
    assert second
    assert not second & first
    assert rl()["job"] == job, "one attempt all the time"

    page.set_state(flow_run, type="CANCELLING")
    assert page.ended(flow_run, 90)[0] == "CANCELLED"
    until(lambda: _is_idle(machine), 90)
    stopped = rl()
    assert stopped["state"] == "stopped"
    assert machine.report("endless")["state"] == "stopped"

    page.retry(flow_run)
    steps_more(1)
    assert rl()["done"] > stopped["done"] > 2, "it went on from the checkpoint of the stop"
    assert machine.runs("endless") == [run], "as the run that it was"
    command = machine.follow("endless")
    time.sleep(2)
    command.send_signal(signal.SIGINT)
    time.sleep(0.7)
    command.send_signal(signal.SIGINT)
    assert command.wait(90) == 130
    until(lambda: _is_idle(machine), 90)
    assert rl()["state"] == "stopped"
    assert machine.attempts(rl()) == 2
