"""Attempts at a stage that a power cut or a cancelled run leaves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.errors import InfrastructureError, StageFailed, StorageError
from infra.store.artifacts import ArtifactStore
from infra.store.store import Store
from tasks.base.spec import BaseSettings, BaseSpec, RandomModel
from tasks.durable.attempts import RunPlace, StageStopped, StageWork, is_under_way, run_stage
from tasks.durable.claims import Claims, End, Owner
from tasks.durable.launch import LocalLauncher
from tasks.stage import Resources, StageResources

pytestmark = pytest.mark.unit

DIGEST = "3f09c2b1a7d4" + 52 * "0"
OWNER = Owner(home="elsewhere", launcher="ray", job="job", run="another")


RANDOM = RandomModel(
    hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn_size=16, vocab_size=300
)
SPEC = BaseSpec(settings=BaseSettings(random=RANDOM))
WORK = StageWork("base", SPEC, {}, StageResources(), DIGEST)


class Watch:
    def line(self, text: str) -> None: ...
    def progress(self, done: int, total: int, message: str) -> None: ...
    def warn(self, message: str) -> None: ...
    def started(self, job: str, attempt: int, mine: bool) -> None: ...


class CancelledMeanwhile(LocalLauncher):
    """The run is cancelled while the job is on its way; the job itself would go on for a minute."""

    place: RunPlace

    def submit(self, job: str, arguments: list[str], env: Mapping[str, str]) -> None:
        LocalLauncher.submit(self, job, ["-c", "import time; time.sleep(60)"], env)
        self.place.cancelled.set()


class ReplyLost(CancelledMeanwhile):
    """The job is taken, and nobody hears of it."""

    def submit(self, job: str, arguments: list[str], env: Mapping[str, str]) -> None:
        CancelledMeanwhile.submit(self, job, arguments, env)
        raise InfrastructureError("no answer")


def _place(folder: Path, launcher: LocalLauncher) -> RunPlace:
    store = Store(str(folder / "store"))
    artifacts = ArtifactStore(store, folder / "cache")
    return RunPlace(store, artifacts, launcher, "home", "run", Resources())


@pytest.mark.parametrize("damage", [b"", bytes(80)], ids=["empty", "zeros"])
@pytest.mark.parametrize("file", ["claim", "end"])
def test_an_attempt_whose_file_a_power_cut_damaged_is_over(
    tmp_path: Path, file: str, damage: bytes
) -> None:
    place = _place(tmp_path, LocalLauncher())
    claims = Claims(place.store, "base", DIGEST)
    claims.take(1, OWNER)
    claims.finish(1, End(outcome="stopped"))
    (tmp_path / f"store/attempts/base/{DIGEST[:12]}/1.{file}.json").write_bytes(damage)
    newest = claims.latest()
    assert newest is not None
    assert newest.end is not None
    assert (newest.number, newest.end.outcome, newest.end.retryable) == (1, "failed", True)
    assert not is_under_way(place, "base", DIGEST)
    assert claims.take(2, OWNER), "the next attempt is made"


def test_a_claim_of_a_newer_version_is_not_taken_for_damaged(tmp_path: Path) -> None:
    claims = Claims(Store(str(tmp_path)), "base", DIGEST)
    newer = OWNER.model_dump_json()[:-1] + ', "region": "eu"}'
    Store(str(tmp_path)).write(f"attempts/base/{DIGEST[:12]}/1.claim.json", newer.encode())
    with pytest.raises(ValidationError, match="region"):
        claims.latest()


@pytest.mark.parametrize("launcher", [CancelledMeanwhile(), ReplyLost()])
def test_a_run_that_is_cancelled_while_its_job_is_submitted_leaves_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: CancelledMeanwhile
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    launcher.place = place = _place(tmp_path, launcher)
    began = time.monotonic()
    with pytest.raises(StageStopped):
        run_stage(WORK, place, Watch())
    assert time.monotonic() - began < 30, "the job was asked to end"
    with pytest.raises(StageStopped):  # and none is made afterwards
        run_stage(WORK, place, Watch())
    assert len(place.store.listdir("jobs")) == 1


class Busy(Store):
    """Refuses some questions."""

    refusals = 0

    def exists(self, path: str) -> bool:
        if self.refusals:
            self.refusals -= 1
            error = StorageError("the store is busy")
            error.retryable = True
            raise error
        return Store.exists(self, path)


class EndsElsewhere(Watch):
    """Another home's attempt fails as soon as we wait for it, while the store is busy."""

    def __init__(self, store: Busy) -> None:
        self.store = store

    def line(self, text: str) -> None:
        Claims(self.store, "base", DIGEST).finish(1, End(outcome="failed", message="no rows"))
        self.store.refusals = 2


def test_a_store_that_is_busy_for_a_moment_is_no_end_of_waiting_for_another_home(
    tmp_path: Path,
) -> None:
    store = Busy(str(tmp_path / "store"))
    place = replace(_place(tmp_path, LocalLauncher()), store=store, poll_seconds=0.02)
    Claims(store, "base", DIGEST).take(1, OWNER)
    with pytest.raises(StageFailed, match="no rows"):
        run_stage(WORK, place, EndsElsewhere(store))
    assert store.refusals == 0
