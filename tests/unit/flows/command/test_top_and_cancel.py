"""`tributary top` and `cancel`: what runs, how long it has left, and how it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.command.top import Watched
from flows.load import load_recipe
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState, StageRecord
from flows.running.run_lock import working_on
from infra.home import home
from tasks.durable.launch import LocalLauncher, log_path
from tests.parts.machine import until
from tests.parts.recorded_run import exit_code

pytestmark = pytest.mark.unit

LOG = """step 1: generate_tokens_per_s=100 train_tokens_per_s=7
@tributary {"event": "progress"}
step 2: outcome_mean=0.5 generate_tokens_per_s=1.25e+03 train_tokens_per_s=40 mfu=2e-05 \
publish_pause_seconds=0.25 staleness_mean=1.5 kv_use_mean=0.5 kv_use_max=0.75
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))


def _run() -> RunRecord:
    made = new_run(load_recipe("cpu-smoke"), "post-train", {}, name="first", in_process=True)
    made.put_state(RunState(state="running", started=time.time()))
    return made


def test_time_left_follows_the_pace_of_the_present_go() -> None:
    """Resumed at step 8; 2 steps in 20 s, so 10 steps need 100 s, of which 5 have passed."""
    stage = StageRecord(
        name="a", kind="rl", state="running", done=10, total=20, begun=8, begun_at=100.0, told=120.0
    )
    assert stage.seconds_left(125.0) == 95.0
    assert stage.seconds_left(1000.0) == 0.0, "never less than nothing"
    for unknown in ({"done": 8}, {"state": "completed"}, {"done": 21}, {"begun_at": 0.0}):
        assert stage.model_copy(update=unknown).seconds_left(125.0) is None


def test_a_running_stage_shows_its_rates_and_servers() -> None:
    run = _run()
    log_path("job").parent.mkdir(parents=True)
    log_path("job").write_text(LOG)
    stage = StageRecord(name="agent-rl", kind="rl", state="running", job="job", done=2, total=4)
    run.put_stage(stage)
    run.put_stage(StageRecord(name="base", kind="base", state="completed"))
    assert list(Watched().now()) == [], "a run that no process works on"
    with working_on(run.run):
        (shown,) = Watched().now()
    assert (shown.run, shown.stage, shown.done, shown.total) == (run.run, "agent-rl", 2, 4)
    assert shown.tokens_per_s == {"generated": 1250.0, "trained": 40.0}
    figures = {"mfu": 2e-5, "pause s": 0.25, "staleness": 1.5, "KV use": 0.75}
    assert shown.figures == figures
    assert shown.servers == "1 x tp 1"
    assert exit_code(["top", "--every", "0.1"]) == 2


def test_a_run_whose_store_is_out_of_reach_hides_no_other() -> None:
    run, other = _run(), _run()
    run.put_stage(StageRecord(name="agent-rl", kind="rl", state="running"))
    entry = home() / "runs" / f"{other.run}.json"
    held = json.loads(entry.read_text())
    entry.write_text(json.dumps(held | {"credentials": "a-block-of-a-stack-that-is-down"}))
    with working_on(run.run), working_on(other.run):
        assert [shown.run for shown in Watched().now()] == [run.run]


def test_a_run_that_does_not_run_is_only_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    run = _run()
    run.put_state(RunState(state="completed"))
    assert exit_code(["cancel", "first"]) == 0
    assert f"run {run.run} does not run: it is completed" in capsys.readouterr().out
    assert run.state().state == "completed"


def test_a_run_whose_process_died_is_put_on_record_as_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _run()
    run.put_stage(StageRecord(name="agent-rl", kind="rl", state="running", job="gone", mine=True))
    assert exit_code(["cancel", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": run.run, "state": "stopped", "runs": False,
    }  # fmt: skip
    stage = run.stage("agent-rl")
    assert stage is not None
    assert stage.state == "stopped"


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_the_jobs_of_a_run_that_was_suspended_or_whose_flow_died_are_stopped(state: str) -> None:
    """Such a run is over, but its job goes on."""
    run, launcher = _run(), LocalLauncher()
    run.put_state(RunState.model_validate({"state": state}))
    job = StageRecord(name="agent-rl", kind="rl", state="running", job="job", mine=True)
    run.put_stage(job)
    launcher.submit("job", ["-c", "import time; time.sleep(60)"], {})
    try:
        assert exit_code(["cancel", "first"]) == 0
        until(lambda: launcher.state("job") == "over", 5)
    finally:
        launcher.stop("job")
    stage = run.stage("agent-rl")
    assert stage is not None
    assert (stage.state, run.state().state) == ("stopped", state)


HOLD = """
import sys, time
from flows.running.run_lock import working_on
with working_on(sys.argv[1]):
    time.sleep(120)
"""


def test_the_process_of_a_run_in_process_is_asked_to_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _run()
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, run.run], env=env)
    try:
        lock = Path(os.environ["TRIBUTARY_HOME"]) / "runs" / f"{run.run}.lock"
        until(lambda: lock.is_file() and bool(lock.read_text()), 60)
        assert exit_code(["cancel"]) == 0
        assert holder.wait(20) == -signal.SIGTERM
    finally:
        holder.kill()
        holder.wait(20)
    assert f"continue with: tributary resume {run.run}" in capsys.readouterr().out
