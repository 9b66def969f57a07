"""A stage's job that cannot do its work: it says why in its `end.json` and makes nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.store import Store
from tasks.durable.claims import Claims, End
from tasks.durable.job import EXIT_FAILED, _git_state, _until_stopped, main
from tasks.durable.prefect_task import MOST_PROGRESS_SECONDS, pause_after
from tasks.durable.protocol import MARK, JobInput, dispatch, job_path
from tasks.durable.reporter import MOST_LINE_SECONDS, line_pause
from tasks.durable.stage_identity import stage_identity
from tasks.sft.spec import SftSpec
from tasks.stage import Resources, StageResources, StopFlag

pytestmark = pytest.mark.unit

SPEC = SftSpec.model_validate({"settings": {"steps": 1, "optimizer": {"lr": 1e-3}}})
DIGEST = stage_identity(SPEC, {"model": "b" * 64}).digest


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own, and SIGTERM given back: a job takes it."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def model(store: Store, tmp_path: Path) -> ArtifactRecord:
    """An input artifact of one file."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return ArtifactStore(store, tmp_path / "cache").commit(
        "base", "b" * 64, 1, folder, identity={}, inputs={}, code={}, metrics={}, seeds={},
        mlflow_run_id="", seconds=1.0,
    )  # fmt: skip


def _end_of_job(store: Store, model: ArtifactRecord) -> End:
    """How a supervised stage on this model ends."""
    given = JobInput(
        job="job", stage="agent-sft", kind="sft", spec_name="sft",
        spec=SPEC.model_dump(), digest=DIGEST, attempt=1, inputs={"model": model},
        resources=StageResources(), pool=Resources(),
    )  # fmt: skip
    store.write(job_path("job"), given.model_dump_json().encode())
    assert main(store.root, "job") == EXIT_FAILED
    assert ArtifactStore(store, Path(store.root)).find("sft", DIGEST) is None
    end = Claims(store, "sft", DIGEST).end_of(1)
    assert end is not None
    assert (end.outcome, end.retryable) == ("failed", False)
    return end


def test_a_corrupted_input_is_never_used(store: Store, model: ArtifactRecord) -> None:
    (Path(model.url.removeprefix("file://")) / "model.safetensors").write_bytes(b"WEIGHTS")
    end = _end_of_job(store, model)
    assert end.error == "CorruptArtifact"
    assert "another checksum than its manifest says" in end.message
    assert "Delete the folder" in end.message


def test_an_input_that_lost_a_file_is_never_used(store: Store, model: ArtifactRecord) -> None:
    (Path(model.url.removeprefix("file://")) / "model.safetensors").unlink()
    assert _end_of_job(store, model).error == "CorruptArtifact"


def test_an_input_that_was_deleted_says_so(store: Store, model: ArtifactRecord) -> None:
    store.delete_tree("artifacts")
    end = _end_of_job(store, model)
    assert end.error == "CorruptArtifact"
    assert "it was deleted" in end.message


def test_a_job_of_another_identity_than_the_plans_runs_nothing(
    store: Store, model: ArtifactRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the base folder, a hook or the code changed between plan and job."""
    monkeypatch.setattr("tests.unit.tasks.test_job.DIGEST", "5" * 64)
    end = _end_of_job(store, model)
    assert end.error == "InputError"
    assert "nothing was run" in end.message


@pytest.mark.parametrize(("made", "told"), [(None, "returned nothing"), ([0.5], "returned a list")])
def test_a_body_that_returns_no_dict_is_told_what_to_return(
    store: Store,
    model: ArtifactRecord,
    monkeypatch: pytest.MonkeyPatch,
    made: object,
    told: str,
) -> None:
    async def body(spec: object, context: object) -> object:
        return made

    monkeypatch.setattr("tasks.durable.job.body_of", lambda kind: body)
    end = _end_of_job(store, model)
    assert end.error == "InputError"
    assert f"the body of stage agent-sft (kind sft) {told}" in end.message
    assert "must return a dict of numbers by name" in end.message


async def test_a_body_that_a_cancelled_task_ends_was_not_stopped(tmp_path: Path) -> None:
    async def body() -> dict[str, float]:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
        return {}

    with pytest.raises(RuntimeError, match="waited for a task that was cancelled"):
        await _until_stopped(body(), StopFlag())


def test_half_an_emoji_in_an_error_or_a_warning_is_written_and_shown() -> None:
    end = End(outcome="failed", message="row 3: half \ud83d")
    assert End.model_validate_json(end.model_dump_json()).message == "row 3: half ?"
    said: list[str] = []
    watch = SimpleNamespace(warn=said.append)
    event = {"job": "a1", "event": "warn", "message": "half \ud83d"}
    dispatch("a1", MARK + json.dumps(event), watch)
    assert said == ["half ?"]


@pytest.mark.parametrize(
    "said",
    [
        *('{"event": "warn", "message": "all is well"}', "[]", "5", "null", "[" * 20_000, "{"),
        '{"job": "b2", "event": "progress", "done": 9, "total": 9, "message": ""}',
        *('{"job": "a1"}', '{"job": "a1", "event": "stop"}'),
        '{"job": "a1", "event": "progress", "done": 1e999, "total": null, "message": {}}',
    ],
)
def test_what_a_part_prints_of_a_model_is_never_taken_for_an_event(said: str) -> None:
    lines: list[str] = []
    dispatch("a1", MARK + said, SimpleNamespace(line=lines.append))
    assert lines == [MARK + said]


@pytest.mark.parametrize(("days", "most"), [(1, 1_900), (7, 10_600), (28, 40_900)])
def test_what_a_page_and_a_log_show_of_a_stage_of_days_is_bounded(days: int, most: int) -> None:
    """A stage whose every step is ready to be shown: versions of its bar, and lines of its log."""
    for pause, slowest in ((pause_after, MOST_PROGRESS_SECONDS), (line_pause, MOST_LINE_SECONDS)):
        now, shown = 0.0, 0
        while now < days * 86_400:
            now, shown = now + pause(now), shown + 1
        assert shown < most * 60 / slowest * 1.6
    assert (pause_after(0), line_pause(0)) == (2.0, 1.0)


def test_git_is_started_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs what the checkout's settings name, as a monitor of files."""
    told = tmp_path / "told"
    (tmp_path / ".git").mkdir()
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\nenv > {told}\necho abc\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("MCP_TOKEN", "planted-and-random-9f3k")
    assert _git_state(tmp_path, ["a.py"]) == ("abc", True)
    assert "PATH=" in told.read_text()
    assert "planted" not in told.read_text()
