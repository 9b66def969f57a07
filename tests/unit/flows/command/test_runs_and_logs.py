"""`tributary runs` and `logs`: what a home has run, and what a stage's job wrote."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from flows.command import live_table, runs_command
from flows.command.app import CommandConsole
from flows.command.main import main
from flows.load import load_recipe
from flows.running.new_run import new_run
from flows.running.prefect_api import KEPT, RefusedRun, forget_refused, put_refused, refused_runs
from flows.running.records import RunRecord, RunState, StageRecord
from flows.running.run_lock import working_on
from tasks.durable.launch import log_path

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def _run(name: str = "") -> RunRecord:
    return new_run(load_recipe("cpu-smoke"), "post-train", {}, name=name, in_process=True)


def _put(run: RunRecord, name: str, job: str, text: str, **fields: object) -> None:
    run.put_stage(StageRecord.model_validate({"name": name, "kind": "sft", "job": job, **fields}))
    if job:
        log_path(job).parent.mkdir(parents=True, exist_ok=True)
        log_path(job).write_text(text)


def test_a_run_that_a_form_asked_for_in_vain_is_listed_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = _run("first")
    put_refused("a", RefusedRun(asked="cpu-smoke", why="seed: got `x`", at=time.time() + 1))
    assert _exit_code("runs") == 0
    shown = capsys.readouterr().out
    assert "1 of 2 runs were refused" in shown
    assert "cpu-smoke: seed: got `x`" in shown
    assert _exit_code("runs", "--limit", "1", "--json") == 0
    assert [run["state"] for run in json.loads(capsys.readouterr().out)] == ["refused"]
    forget_refused("a")  # a retry of the same flow run began
    assert _exit_code("runs", "--json") == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)] == [begun.run]
    for n in range(KEPT + 2):
        put_refused(str(n), RefusedRun(asked=str(n), why="", at=n))
    assert len(refused_runs()) == KEPT
    assert refused_runs()[0].at == KEPT + 1


def test_runs_are_listed_with_state_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("runs") == 0
    assert "no runs yet" in capsys.readouterr().out
    done, lost = _run("first"), _run("second")
    done.put_state(RunState(state="completed", seconds=12.4))
    lost.store.delete_tree(f"runs/{lost.run}")
    assert _exit_code("runs", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(r["run"], r["state"], r["seconds"]) for r in listed] == [
        (lost.run, "gone", 0.0), (done.run, "completed", 12.4),
    ]  # fmt: skip
    assert _exit_code("runs", "--limit", "1", "--json") == 0
    assert [r["run"] for r in json.loads(capsys.readouterr().out)] == [lost.run]
    assert _exit_code("runs") == 0
    shown = capsys.readouterr().out
    assert "completed" in shown
    assert done.run in shown, "ids are whole, in a narrow terminal too"
    assert _exit_code("runs", "--limit", "0") == 2


def test_the_log_of_the_latest_stage_or_of_a_named_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _run()
    assert _exit_code("logs") == 2, "no stage has begun"
    event = '@tributary {"job": "one", "event": "progress", "done": 1, "total": 9, "message": "x"}'
    rays = "2026-11-27 07:18:30,025\tINFO job_manager.py:581 -- Runtime env is setting up.\n"
    _put(run, "agent-sft", "one", f"{rays}{event}\nof sft\n", started=5.0)
    _put(run, "agent-rl", "two", "\x1b]0;title\x07 \x9b31m of rl\n", started=9.0)
    _put(run, "base", "", "", cached=True)
    capsys.readouterr()
    assert _exit_code("logs") == 0
    assert capsys.readouterr().out.endswith("\\x1b]0;title\\x07 \\x9b31m of rl\n")
    assert _exit_code("logs", "cpu-smoke/agent-sft") == 0
    assert _exit_code("logs", "cpu-smoke", "agent-sft") == 0
    assert capsys.readouterr().out.endswith("log\n1 of 9: x\nof sft\n")
    for stage, said in (("base", "cached, or not started"), ("agent-lr", "mean `agent-rl`")):
        assert _exit_code("logs", "cpu-smoke", stage) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert _exit_code("logs", "agent-rl") == 2
    said = f"`agent-rl` is a stage of {run.run}: name the run"
    assert said in " ".join(capsys.readouterr().err.split())
    log_path("one").unlink()
    assert _exit_code("logs", "cpu-smoke", "agent-sft") == 2
    assert "not on this machine" in " ".join(capsys.readouterr().err.split())


def test_a_log_is_followed_until_its_stage_is_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_command, "POLL_SECONDS", 0.05)
    run = _run()
    _put(run, "agent-rl", "two", "step 1\n", state="running")

    def finish() -> None:
        with log_path("two").open("a") as log:
            log.write("ste")
            log.flush()
            time.sleep(0.2)
            log.write("p 2\n")
        run.put_stage(StageRecord(name="agent-rl", kind="rl", job="two", state="completed"))

    with working_on(run.run):
        end = threading.Timer(0.3, finish)
        end.start()
        assert _exit_code("logs", "-f") == 0
        end.join()
    assert capsys.readouterr().out.endswith("step 1\nstep 2\n")


def test_following_ends_with_a_run_that_nobody_works_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _put(_run(), "agent-rl", "two", "step 1\n", state="running")
    assert _exit_code("logs", "--follow") == 0
    assert capsys.readouterr().out.endswith("step 1\n")


def test_where_no_terminal_shows_a_table_a_line_says_now_and_then_how_far_a_stage_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_table, "_TELL_S", 0.0)
    run = _run()
    shown = live_table.LiveTable(run, [], CommandConsole())
    for done in (0, 5, 6):
        stage = {"name": "agent-sft", "kind": "sft", "state": "running", "done": done, "total": 20}
        warned = {"warnings": [{"what": "left out: a.jsonl:3"}]} if done else {}
        run.put_stage(StageRecord.model_validate(stage | warned))
        shown.update()
    assert capsys.readouterr().out.splitlines() == [
        "agent-sft: running", "agent-sft: 5 of 20", "warning: agent-sft: left out: a.jsonl:3",
        "agent-sft: 6 of 20",
    ]  # fmt: skip
    table = live_table.run_table([], run.stages())
    assert str(table.caption) == "agent-sft: left out: a.jsonl:3"
