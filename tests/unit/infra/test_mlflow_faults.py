"""Entries for an MLflow that fails, refuses, or is not what answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from infra.processes.network import free_ports
from infra.stack import doctor
from infra.tracking import spool
from infra.tracking import tracker as tracker_module
from infra.tracking.refusals import refused_folder
from infra.tracking.spool import Entry, KnownSteps, SpoolFile, deliver_spool, spool_folder
from infra.tracking.tracker import Tracker
from tests.parts.json_server import json_server
from tests.parts.machine import until

pytestmark = pytest.mark.unit
Trackers = Callable[[str], Tracker]


@pytest.fixture
def trackers() -> Iterator[Trackers]:
    """Trackers of a server; their threads end with the test."""
    with ExitStack() as stack:
        yield lambda uri: stack.enter_context(closing(Tracker(uri, "e")))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setattr(tracker_module, "_RETRY_SECONDS", 0.02)


class StandIn:
    """Takes metrics, except that some get an answer of their own."""

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        self._answers = answers
        self.metrics: list[tuple[str, int]] = []
        self.statuses: list[str] = []
        self.busy = 0
        """how many requests with metrics fail first"""

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.endswith("/runs/update"):
            self.statuses.append(body["status"])
            return 200, {}
        given = [(m["key"], m["step"]) for m in body.get("metrics", [])]
        if given and self.busy:
            self.busy -= 1
            return 500, {"error_code": "INTERNAL_ERROR", "message": "database is locked"}
        for key, _ in given:
            if key in self._answers:
                return self._answers[key]
        self.metrics += given
        return 200, {"run": {"info": {}, "data": {}}}


REFUSALS = {
    "fails": (500, {"error_code": "INTERNAL_ERROR", "message": "cannot bear it"}),
    "large": (413, "too large"),
    "refused": (400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "bad"}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_one_point_that_the_server_cannot_take_costs_that_point_only(
    trackers: Trackers, name: str
) -> None:
    stand_in = StandIn(REFUSALS)
    with json_server(stand_in) as port:
        tracker = trackers(f"http://127.0.0.1:{port}")
        for step in range(5):
            tracker.log("run", step, {"loss": 1.0, **({name: 1.0} if step == 3 else {})})
        tracker.finish("run", "FINISHED")
        # While the server fails, as it does when it is busy, one does not wait for it.
        until(lambda: tracker.flush(20), 60)
    assert sorted(stand_in.metrics) == [("loss", step) for step in range(5)]
    assert stand_in.statuses == ["FINISHED"]
    assert f"the metric {name}" in tracker.refused()
    assert (refused_folder() / "entries.jsonl").read_text().count("\n") == 1


def test_a_busy_server_gets_everything_later(trackers: Trackers) -> None:
    stand_in = StandIn({})
    stand_in.busy = 3
    with json_server(stand_in) as port:
        tracker = trackers(f"http://127.0.0.1:{port}")
        tracker.log("run", 1, {"loss": 1.0, "reward": 0.5})
        until(lambda: tracker.flush(20), 60)
    assert sorted(stand_in.metrics) == [("loss", 1), ("reward", 1)]
    assert tracker.refused() == ""


@pytest.mark.parametrize("answer", [(401, "no key"), (404, "nothing here"), (200, "hello")])
def test_what_is_no_mlflow_gets_nothing_and_loses_nothing(
    trackers: Trackers, answer: tuple[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with json_server(lambda path, body: answer) as port:
        tracker = trackers(f"http://127.0.0.1:{port}")
        tracker.log("run", 1, {"loss": 1.0})
        assert not tracker.flush(20)
    assert "is no MLflow, or asks for another key" in caplog.text
    assert len(list(spool_folder().iterdir())) == 1
    assert tracker.refused() == ""


def test_a_spool_file_that_cannot_be_read_is_set_aside_and_the_next_is_sent() -> None:
    spool_folder().mkdir(parents=True)
    (spool_folder() / "1-1.jsonl").mkdir()
    line = '{"run": "run", "metrics": [{"key": "loss", "value": 1.0, "step": 1, "timestamp": 1}], '
    (spool_folder() / "2-1.jsonl").write_text(line + '"status": ""}\n')
    stand_in = StandIn({})
    with json_server(stand_in) as port:
        sent, _ = deliver_spool(f"http://127.0.0.1:{port}")
    assert sent == 1
    assert stand_in.metrics == [("loss", 1)]
    assert (refused_folder() / "1-1.jsonl").is_dir()
    (refused_folder() / "entries.jsonl").write_text("{}\n{}\n")
    (told,) = [check for check in doctor() if check.name == "tracking"]
    assert told.warns
    assert (
        f"MLflow refused 2 entries and 1 files: they are kept in {refused_folder()}" in told.detail
    )


def test_the_thread_of_a_closed_tracker_ends_and_its_entries_stay_on_disk(
    trackers: Trackers,
) -> None:
    tracker = trackers(f"http://127.0.0.1:{free_ports(1)[0]}")
    tracker.log("run", 1, {"loss": 1.0})
    assert not tracker.flush(20)
    before = threading.active_count()
    tracker.close()
    assert threading.active_count() == before - 1
    assert len(list(spool_folder().iterdir())) == 1


def test_a_full_home_costs_the_copy_and_one_warning(
    trackers: Trackers, caplog: pytest.LogCaptureFixture
) -> None:
    spool_folder().parent.mkdir(parents=True)
    spool_folder().write_text("in the way of the folder")
    stand_in = StandIn({})
    with json_server(stand_in) as port:
        tracker = trackers(f"http://127.0.0.1:{port}")
        for step in range(3):
            tracker.log("run", step, {"loss": 1.0})
        tracker.flush(1)
    assert caplog.text.count("metrics are not kept") == 1


@pytest.mark.parametrize("first", ["in order", "backwards", "by turns of two", "at random"])
def test_known_steps_are_those_that_were_added(first: str) -> None:
    there = [*range(50), *range(60, 200, 10), 203, 209, *range(1000, 1010, 3)]
    order = {
        "in order": there,
        "backwards": there[::-1],
        "by turns of two": [*there[::2], *there[1::2]],
        "at random": random.Random(0).sample(there, len(there)),
    }[first]
    known = KnownSteps(order[:20])
    for step in order[20:]:
        assert step not in known
        known.add(step)
    assert [step for step in range(-5, 1100) if step in known] == there


def test_many_steps_are_known_in_little_memory() -> None:
    known = KnownSteps(range(0, 100, 10))
    for step in range(100, 1_000_000, 10):
        known.add(step)
    assert known._runs == [range(0, 999_991, 10)]


def test_what_waits_for_a_server_that_is_down_is_kept_on_disk_alone(
    trackers: Trackers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.tracking.tracker._IN_MEMORY", 10)
    port = free_ports(1)[0]
    tracker = trackers(f"http://127.0.0.1:{port}")
    tracker.log("run", 0, {"loss": 1.0})
    assert not tracker.flush(20)
    for step in range(1, 100):
        tracker.log("run", step, {"loss": 1.0})
    waits = tracker._sender._queue
    assert waits.qsize() <= 11
    stand_in = StandIn({})
    with json_server(stand_in, port):
        until(lambda: tracker.flush(20), 60)
    assert sorted(stand_in.metrics) == [("loss", step) for step in range(100)]
    assert not list(spool_folder().glob("*.jsonl"))


def test_entries_are_not_written_into_a_file_that_another_process_has_just_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between its making and its lock, a file looks as one that a dead process left."""
    lock, removed = spool.fcntl.flock, list[Path]()

    def after_another(file: Any, kind: int) -> None:
        if not removed:
            removed.extend(spool_folder().iterdir())
            removed[0].unlink()
        lock(file, kind)

    monkeypatch.setattr(spool.fcntl, "flock", after_another)
    file = SpoolFile()
    file.append(Entry("run", status="FINISHED"))
    file.release()
    (left,) = spool_folder().iterdir()
    assert left not in removed
    assert b"FINISHED" in left.read_bytes()
