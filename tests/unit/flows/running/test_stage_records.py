"""What is on record of a stage while its job runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.running.records import RunRecord, StageRecord
from flows.running.run import _Recorded
from infra.errors import StorageError
from infra.store.store import Store

pytestmark = pytest.mark.unit

DIGEST = "3f09c2b1a7d4"
LEFT = StageRecord(
    name="base", kind="base", state="running", digest=DIGEST, job="run--base--a1", mine=True
)


class Said:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def line(self, text: str) -> None: ...
    def progress(self, done: int, total: int, message: str) -> None: ...
    def started(self, job: str, attempt: int, mine: bool) -> None: ...

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class Flaky(Store):
    """Does not answer while it is away."""

    is_away = False

    def write(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if self.is_away:
            raise StorageError("the store cannot be reached")
        Store.write(self, path, data, sync=sync)


def _recorded(store: Store, watch: Said, known: StageRecord | None = None) -> _Recorded:
    return _Recorded(RunRecord(store, "run"), _base(), DIGEST, watch, known)


def _base() -> PlannedStage:
    return plan_post_train(load_recipe("cpu-demo"))[0]


def test_a_store_that_is_away_for_a_moment_does_not_end_a_stage_whose_job_goes_on(
    tmp_path: Path,
) -> None:
    store, watch = Flaky(str(tmp_path)), Said()
    recorded = _recorded(store, watch)
    store.is_away = True
    recorded.started("run--base--a1", 1, True)
    recorded.progress(4, 4, "step 4")
    assert watch.warnings == ["the stage's record is behind: the store cannot be reached"]
    store.is_away = False
    recorded.progress(5, 5, "step 5")
    found = RunRecord(store, "run").stage("base")
    assert found is not None
    assert (found.state, found.job, found.mine, found.done) == ("running", "run--base--a1", True, 5)


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (LEFT, "running"),
        (LEFT.model_copy(update={"digest": "other"}), "pending"),
        (LEFT.model_copy(update={"mine": False}), "pending"),
        (LEFT.model_copy(update={"state": "failed"}), "pending"),
        (None, "pending"),
    ],
)
def test_a_job_that_an_earlier_process_left_stays_on_record_while_the_stage_waits_for_a_slot(
    tmp_path: Path, known: StageRecord | None, state: str
) -> None:
    record = RunRecord(Store(str(tmp_path)), "run")
    if known is not None:
        record.put_stage(known)
    _recorded(record.store, Said(), known).wait()
    found = record.stage("base")
    assert found is not None
    assert found.state == state
    assert (found.job, found.mine) == ((LEFT.job, True) if state == "running" else ("", False))


def test_a_clock_that_is_set_back_stops_no_record_and_takes_no_time_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.running.run.RECORD_SECONDS", 0.0)
    recorded = _recorded(Store(str(tmp_path)), Said())
    recorded.progress(1, 9, "step 1")
    hour_ago = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: hour_ago)
    recorded.progress(2, 9, "step 2")
    found = RunRecord(Store(str(tmp_path)), "run").stage("base")
    assert found is not None
    assert found.done == 2
    assert found.model_copy(update={"state": "running"}).seconds_at(hour_ago) == 0.0
    recorded.end("completed")
    found = RunRecord(Store(str(tmp_path)), "run").stage("base")
    assert found is not None
    assert found.seconds >= 0.0


def test_what_a_running_stage_warns_of_is_shown_until_its_artifact_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, watch = RunRecord(Store(str(tmp_path)), "run"), Said()
    recorded = _recorded(record.store, watch)

    def warned() -> list[str]:
        found = record.stage("base")
        assert found is not None
        return [str(warning) for warning in found.warnings]

    recorded.started("run--base--a1", 1, True)
    for step in range(9):
        recorded.warn(f"step {step}")
    assert warned() == [], "the record is not written for each"
    recorded.progress(1, 9, "")
    assert warned() == ["step 6", "step 7", "step 8"]
    monkeypatch.setattr("flows.running.run.RECORD_SECONDS", 0.0)
    recorded.warn("step 9")
    assert warned()[-1] == "step 9"
    assert watch.warnings == [f"step {step}" for step in range(10)]
    recorded.started("run--base--a2", 2, True)
    assert warned() == [], "of another attempt"
    recorded.warn("again")
    recorded.end("failed", "it broke")
    assert warned() == []
