"""Every command that shows something prints it as JSON too, and plain and whole in a pipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from flows.command.app import CommandConsole, duration, text_table
from flows.command.live_table import run_table
from flows.command.main import app
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.running.records import StageRecord
from tests.parts.recorded_run import RecordedRun, exit_code

pytestmark = pytest.mark.unit

GROUPS = {"fleet"}
"""of commands with two words"""
COMMANDS = {
    " ".join((*group, name)): of[name]
    for group, of in [((), app), *(((name,), app[name]) for name in GROUPS)]
    for name in of
    if not name.startswith("-") and (group or name not in GROUPS)
}
SHOWS_NOTHING = {"init", "up", "down", "secret"} | {
    *("run", "resume", "retry", "rounds", "sft", "rl", "distill", "evaluate"),
    *("preference", "reward"),
    *("chat", "convert", "export", "fleet up", "label", "notify", "push", "save", "serve"),
}
"""they do something; what a run gave, `report --json` prints"""
IS_TEXT = {"completion", "logs"}
CALLS: dict[str, list[str]] = {
    "artifacts": [],
    "cancel": [],
    "clean": [],
    "check": ["cpu-smoke", "--set", "seed=1"],
    "compare": ["first", "second"],
    "diff": ["cpu-smoke", "cpu-demo"],
    "recipes": [],
    "report": [],
    "rollouts": [],
    "runs": [],
    "status": [],
    "test-hook": ["curricula.reasoning:Reasoning"],
    "top": [],
}
NEED_MORE = {
    *(
        "admit",
        "align",
        "doctor",
        "fleet check",
        "judge-check",
        "preview",
        "publish",
        "replay",
        "sessions",
    )
}
"""called with --json where the machine is looked at, and a model, servers or kept rollouts are"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    return RecordedRun.of(tmp_path, "first").with_samples()


def test_brackets_in_names_and_messages_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    console = CommandConsole(width=100)
    console.print(text_table(["model [x]"], [["a [/red] b"]], "of [bold]run"))
    plan = plan_post_train(load_recipe("cpu-smoke"))[:1]
    stages = {
        plan[0].name: StageRecord(
            name=plan[0].name, kind="base", state="running", done=1, total=2, message="[/x] 3 [of]"
        )
    }
    console.print(run_table(plan, stages))
    told = " ".join(capsys.readouterr().out.split())
    for text in ("model [x]", "a [/red] b", "of [bold]run", "1/2 [/x] 3 [of]"):
        assert text in told, text


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    exit_code([*arguments, "--json"])
    said = capsys.readouterr()
    return json.loads(said.out, parse_constant=lambda word: pytest.fail(f"no JSON: {word}"))


def test_each_command_has_the_option_or_shows_nothing() -> None:
    without = SHOWS_NOTHING | IS_TEXT
    found = {
        name
        for name, command in COMMANDS.items()
        if any("--json" in a.names for a in command.assemble_argument_collection())
    }
    assert found == COMMANDS.keys() - without
    assert set(CALLS) | NEED_MORE >= found


@pytest.mark.parametrize("command", CALLS)
def test_what_a_command_prints_with_json_is_json(
    command: str, run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "compare":
        _scored(run)
        _scored(RecordedRun.of(run.scratch / "other", "second"))
    assert isinstance(_json(capsys, command, *CALLS[command]), dict | list)


def _scored(run: RecordedRun) -> None:
    folder = run.folder("scored")
    scores = {"base": {"agent": 0.0}, "agent": {"agent": 0.5}}
    (folder / "scores.json").write_text(json.dumps({"scores": scores, "cells": []}))
    run.put("evaluate", "evaluate", folder)


@pytest.mark.usefixtures("run")
def test_check_says_of_each_stage_whether_and_why_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = _json(capsys, "check", "cpu-smoke")
    assert found["recipe"]["name"] == "cpu-smoke"
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert stages["base"]["cached"] is False
    assert stages["base"]["why"]
    assert stages["agent-rl"]["inputs"] == {"model": "agent-sft"}
    assert found["exact"] is True


def test_artifacts_name_their_run_stage_and_score(
    run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    RecordedRun.of(run.scratch / "other", "second")
    listed = {each["kind"]: each for each in _json(capsys, "artifacts")}
    assert {(each["run"], each["stage"]) for each in listed.values()} == {
        (run.run, "agent-rl"), (run.run, "unified-distill"), (run.run, "evaluate"),
    }  # fmt: skip
    assert listed["rl"]["scores"] == {"agent": 0.75}, "in the domain it was trained for"
    assert _json(capsys, "artifacts", "--run", "second") == []
    assert [a["kind"] for a in _json(capsys, "artifacts", "--kind", "distill")] == ["distill"]
    exit_code(["artifacts"])
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if " rl " in line)
    assert row.split()[:5] == [listed["rl"]["digest"][:12], run.run, "agent-rl", "rl", "0.750"]
    assert listed["rl"]["url"] in row, "a pipe gets lines that are whole"


def test_a_pipe_gets_a_table_without_frames(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("one", "two", title="title")
    table.add_row("a" * 300, "b")
    console = CommandConsole()
    console.print(table)
    console.rule("then", align="left")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["title", "one".ljust(302) + "two", "a" * 300 + "  b", "-- then"]


def test_a_number_that_json_has_no_word_for_is_text(
    run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.put("base", "base", run.folder("base"), metrics={"loss": float("nan")})
    (made,) = _json(capsys, "artifacts", "--kind", "base")
    assert made["metrics"] == {"loss": "NaN"}


def test_durations_are_short() -> None:
    shown = [duration(seconds) for seconds in (None, 42.4, 150, 11100)]
    assert shown == ["", "42 s", "2 min", "3 h 05 min"]
