"""One run, artifact or pin that cannot be read: it is named, and the others are as they were."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.command.top import Watched
from flows.reports.rendering import data_block
from flows.running.records import RunRecord, RunState, StageRecord, damaged_entries, find_run
from flows.running.run_lock import working_on
from infra.errors import DamagedRecord
from infra.stack import Check
from tests.parts.recorded_run import RecordedRun, exit_code
from tests.parts.run_records import artifact_store, put_artifact, put_run

pytestmark = pytest.mark.unit

STAGES = {"base": ("base", "b" * 64), "agent-sft": ("sft", "5" * 64)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("flows.command.models.collect.YOUNG_S", -1.0)
    return tmp_path / "home"


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _newer(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "mood": 1}).encode()


def _empty(data: bytes) -> bytes:
    return b""


def _no_text(data: bytes) -> bytes:
    return b"\xff\xfe" + data


def _damage(record: RunRecord, file: str, change: Callable[[bytes], bytes]) -> None:
    path = f"runs/{record.run}/{file}"
    record.store.write(path, change(record.store.read(path)))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("recipe.json", _newer),
        ("recipe.json", _truncated),
        ("state.json", _newer),
        ("state.json", _empty),
        ("stages/agent-sft.json", _newer),
        ("stages/agent-sft.json", _no_text),
    ],
)
def test_a_damaged_file_of_a_run_is_named_and_ends_no_command_on_others(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture, file: str, change: Callable[[bytes], bytes],
) -> None:  # fmt: skip
    good = RecordedRun.of(tmp_path / "made", "good").with_samples()
    bad = put_run(STAGES)
    _damage(bad, file, change)
    assert exit_code(["runs", "--json"]) == 0
    states = {run["run"]: run["state"] for run in json.loads(capsys.readouterr().out)}
    assert set(states) == {good.run, bad.run}
    assert states[bad.run] == ("damaged" if file == "state.json" else "completed")
    assert exit_code(["runs"]) == 0
    shown = capsys.readouterr().out
    assert good.run in shown
    assert ("1 of 2 runs cannot be read" in shown) == (file == "state.json")
    for command in (
        ["report", good.run, "--json"],
        ["artifacts"],
        ["artifacts", "--run", good.run],
    ):
        assert exit_code(command) == 0, command
    assert exit_code(["artifacts", "gc", "--yes"]) == 2, "it may need any artifact"
    told = capsys.readouterr().err
    assert "nothing was deleted" in told
    assert file in told
    assert ("`mood`, which this version" in told) == (change is _newer)
    if change is _newer:
        assert exit_code(["check", "cpu-smoke"]) == 0
    with working_on(bad.run), working_on(good.run):
        good.record.put_stage(StageRecord(name="more", kind="rl", state="running"))
        assert [each.stage for each in Watched().now() if each.run == good.run] == ["more"]
    if file != "state.json":
        assert file in caplog.text


@pytest.mark.parametrize("change", [_truncated, _newer, _empty, _no_text])
def test_a_damaged_entry_of_a_run_is_named_and_hides_no_other(
    home: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes],
) -> None:  # fmt: skip
    if change is not _newer:  # once the doctor looks at everything, and loads torch
        monkeypatch.setattr("infra.stack.doctor", list[Check])
    good, bad = put_run(STAGES), put_run(STAGES)
    entry = home / "runs" / f"{bad.run}.json"
    entry.write_bytes(change(entry.read_bytes()))
    assert find_run().run == good.run
    assert f"run {bad.run} is left out: {entry} cannot be read" in caplog.text
    assert list(damaged_entries()) == [bad.run]
    with pytest.raises(DamagedRecord, match="cannot be read"):
        find_run(bad.run)
    assert exit_code(["runs"]) == 0
    shown = capsys.readouterr().out
    assert good.run in shown
    assert "1 of 2 runs cannot be read" in shown
    assert exit_code(["doctor", "--json"]) in (0, 1)
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert "1 of 2" in checks["runs"]["detail"]
    assert bad.run in checks["runs"]["detail"]


@pytest.mark.parametrize("change", [_truncated, _empty, _no_text])
def test_a_damaged_manifest_is_named_and_neither_hides_nor_deletes_others(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str], change: Callable[[bytes], bytes],
) -> None:  # fmt: skip
    (folder := tmp_path / "made").mkdir()
    (folder / "a").write_text("a")
    put_artifact("base", "b" * 64, folder)
    put_artifact("sft", "5" * 64, folder, {"model": "b" * 64})
    put_run(STAGES)
    store, path = artifact_store().store, f"artifacts/base/{'b' * 12}/manifest.json"
    store.write(path, change(store.read(path)))
    assert exit_code(["artifacts", "--json"]) == 0
    assert [each["digest"] for each in json.loads(capsys.readouterr().out)] == ["5" * 64]
    assert f"the manifest of base/{'b' * 12}" in caplog.text
    for name in list(store.listdir("runs")):
        store.delete_tree(f"runs/{name}")
    assert exit_code(["artifacts", "gc", "--yes", "--json"]) == 0
    assert store.listdir("artifacts/sft") == []
    assert store.exists(path), "nobody knows what it is, so a person deletes it"


def test_gc_deletes_nothing_while_a_pin_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "made").mkdir()
    (folder / "a").write_text("a")
    put_artifact("sft", "5" * 64, folder)
    artifact_store().store.write(f"pins/sft-{'5' * 12}.json", b"{")
    assert exit_code(["artifacts", "gc", "--yes"]) == 2
    assert "the pin " in capsys.readouterr().err
    assert len(artifact_store().list()) == 1


def test_a_stage_s_nan_and_infinities_are_kept_in_its_record() -> None:
    record = put_run({})
    metrics = {"loss": math.nan, "most": math.inf, "least": -math.inf, "one": 1.0}
    record.put_stage(StageRecord(name="agent-rl", kind="rl", metrics=metrics))
    record.put_state(RunState(state="failed", started=time.time()))
    found = record.stages()["agent-rl"].metrics
    assert math.isnan(found.pop("loss"))
    assert found == {"most": math.inf, "least": -math.inf, "one": 1.0}


def test_a_page_s_data_are_json_also_with_nan_and_infinities() -> None:
    text = data_block({"a": [math.nan, -math.inf, 0.5], "b": "NaN <"})
    assert text == '{"a":["NaN","-Infinity",0.5],"b":"NaN \\u003c"}'


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("file", "/file cannot be made: File exists; set TRIBUTARY_HOME to a folder"),
        ("/sys", "/sys/recipes: "),
    ],
)
def test_a_home_that_cannot_be_written_is_named_in_one_line(
    folder: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / folder))
    assert exit_code(["save", "cpu-smoke", "mine"]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "folder that you may write to" in line
