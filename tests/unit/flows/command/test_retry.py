"""`tributary retry`: which stages of a run are done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.catalog import plan_of
from flows.command import runs_command
from flows.running.new_run import new_run
from flows.running.run_lock import working_on
from tests.parts.recorded_run import RecordedRun, exit_code

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    return RecordedRun.of(tmp_path, "first")


def test_a_stage_and_all_that_is_made_from_it_run_again(run: RecordedRun) -> None:
    arguments, again = runs_command._again(run.record, "agent-rl")
    assert again == ["agent-rl", "unified-distill", "unified-sft", "unified-rl", "evaluate"]
    plan = plan_of("post-train", run.record.recipe(), arguments)
    assert [stage.name for stage in plan if stage.again] == again
    assert len(plan) == 11, "the others are there, to be found in the store"


def test_each_refusal_says_what_to_do(run: RecordedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["retry", "first"]) == 2
    assert "name the stage too" in capsys.readouterr().err
    assert exit_code(["retry", "first/agent-lr"]) == 2
    assert "did you mean `agent-rl`" in " ".join(capsys.readouterr().err.split())
    for command in ("retry", "logs"):
        assert exit_code([command, "agent-rl", "first"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"the run comes first: tributary {command} first agent-rl" in said
    assert exit_code(["retry", "first", "agent-rl"]) == 1
    told = capsys.readouterr()
    assert "the local stack is down" in told.err
    assert not told.out, "no run is said to begin"
    with working_on(run.run):
        assert exit_code(["retry", "first", "agent-rl"]) == 2
    assert f"tributary cancel {run.run}" in capsys.readouterr().err


def test_rounds_go_on_by_a_command_of_their_own(
    run: RecordedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, arguments = run.record.recipe(), {"expert": "agent", "rounds": 1, "after": 0}
    new_run(recipe, "distill-rounds", arguments, name="rounds", in_process=True)
    assert exit_code(["retry", "rounds", "agent-distill"]) == 2
    assert "tributary rounds RECIPE --expert agent" in " ".join(capsys.readouterr().err.split())
