"""`tributary rollouts`: which samples are shown, of which run, and what marks survive a pipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.command.samples import Range
from flows.running.records import StageRecord
from infra.errors import InputError
from tests.parts.recorded_run import RecordedRun, exit_code

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    return RecordedRun.of(tmp_path, "first").with_samples()


def _found(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert exit_code(["rollouts", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert exit_code(["rollouts", *arguments]) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--step", "2"], [(2, 0.0), (2, 0.5)]),
        (["--step", "2:", "--reward", "0.5:"], [(2, 0.5), (3, 0.75)]),
        (["--sort", "best", "--limit", "2"], [(3, 0.75), (2, 0.5)]),
        (["--sort", "worst", "--limit", "1"], [(1, 0.0)]),
        (["--status", "failed"], []),
    ],
)
@pytest.mark.usefixtures("run")
def test_filters(
    options: list[str], shown: list[tuple[int, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = _found(capsys, "agent-rl", *options)
    assert [(s["step"], s["reward"]) for s in found["samples"]] == shown


def test_it_says_which_run_and_which_of_all_rollouts_it_shows(
    run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = RecordedRun.of(run.scratch / "newer", "second")
    refused = _refused(capsys, "agent-rl")
    assert f"run {newer.run} has reached no stage `agent-rl`" in refused
    assert "--run" in refused
    assert exit_code(["rollouts", "agent-rl", "--run", "first", "--limit", "1"]) == 0
    said = capsys.readouterr().out
    assert f"run {run.run}, stage agent-rl: rl/111111111111 in " in said
    assert "1 of 6 matching samples are shown" in said
    for name in ("first/agent-rl", "cpu-smoke/agent-rl"):
        assert _found(capsys, name)["run"] == run.run, "the newest that has finished the stage"
    assert "the artifact has 6 samples: all rollouts of steps 1 to 3" in said


@pytest.mark.usefixtures("run")
def test_what_the_model_wrote_is_marked_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["rollouts", "agent-rl", "--limit", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "<q>\u27e6ab\u27e7[x]\u27e6c\u27e7" in lines, "what the environment said is outside"
    marked = (
        "9 tokens, 3 written by the model: 60 113 62 \u27e697 98\u27e7 91 120 93 \u27e699\u27e7"
    )
    assert marked in [line.strip() for line in lines]
    assert "completed \u00b7 reward 0.000 \u00b7 outcome 0 \u00b7 as asked" in lines


@pytest.mark.usefixtures("run")
def test_an_expert_is_found_in_stages_datasets_and_evaluations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _found(capsys)["stage"] == "evaluate", "the run's last stage with samples"
    assert _found(capsys, "--expert", "agent")["stage"] == "agent-rl"
    found = _found(capsys, "evaluate", "--expert", "agent")
    assert [s["of"] for s in found["samples"]] == ["agent"]
    truncated = _found(capsys, "evaluate", "--status", "truncated")
    assert [s["of"] for s in truncated["samples"]] == ["general"]
    (row,) = _found(capsys, "unified-distill", "--expert", "agent")["samples"]
    assert [part["by"] for part in row["response"]] == ["model", "environment"]


def test_an_artifact_is_found_by_its_digest_whichever_run_made_it(
    run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    RecordedRun.of(run.scratch / "newer", "second")
    found = _found(capsys, "1111")
    assert (found["run"], found["stage"]) == (run.run, "agent-rl")
    found = _found(capsys, "1111", "--root", run.record.store.root)
    assert found["artifact"]["kind"] == "rl"


def test_each_refusal_says_what_to_do(run: RecordedRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.put("base", "base", run.folder("base"))
    run.record.put_stage(StageRecord(name="general-rl", kind="rl", state="running"))
    assert "mean `agent-rl`" in _refused(capsys, "agent-lr")
    assert "rl, opd, rollout, distill and evaluate do" in _refused(capsys, "base")
    assert "tributary logs" in _refused(capsys, "general-rl")
    assert "give one of completed" in _refused(capsys, "--status", "done")
    assert "give a number or a range" in _refused(capsys, "--step", "9:2")


def test_ranges() -> None:
    found = Range.of("--step", "5:9")
    assert found is not None
    assert [value in found for value in (4, 5, 9, 10)] == [False, True, True, False]
    assert Range.of("--step", "7") == Range(7, 7)
    assert Range.of("--step", "") is None
    for wrong in (":", "a", "1:2:3", "nan", "2:1"):
        with pytest.raises(InputError, match="--step"):
            Range.of("--step", wrong)
