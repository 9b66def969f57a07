"""A stage that stands still is ended with its stacks on paper; one that is far from its next step
when it is asked to stop ends all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from infra.errors import EngineError
from infra.store.artifacts import ArtifactStore
from infra.store.store import Store
from tasks.durable.attempts import RunPlace, _vigil
from tasks.durable.claims import Claims, End, Owner
from tasks.durable.job import EXIT_FAILED, EXIT_STOPPED
from tasks.durable.launch import LocalLauncher
from tasks.durable.protocol import JobInput, job_path
from tasks.durable.stage_identity import stage_identity
from tasks.sft.spec import SftSpec
from tasks.stage import Pulse, Resources, StageResources

pytestmark = pytest.mark.unit

SPEC = SftSpec.model_validate({"settings": {"steps": 1, "optimizer": {"lr": 1e-3}}})
DIGEST = stage_identity(SPEC, {}).digest
# A job whose body is one of these; the engines have none that hangs when asked to.
JOB = """
import asyncio, subprocess, sys, time
from infra.store import store
from tasks.durable import job, watchdog

async def judge():
    await asyncio.get_running_loop().create_future()

async def rollout():
    await judge()

async def hang(spec, context):
    child = subprocess.Popen(
        [sys.executable, "-c", "import time\\ndef stuck(): time.sleep(60)\\nstuck()", "engines."]
    )
    asyncio.create_task(rollout(), name="rollout p#0")
    await asyncio.sleep(0)
    context.reporter.progress(0, 1, "hangs")
    try:
        time.sleep(60)  # the event loop as well
    finally:
        child.kill()

async def hang_without_disk(spec, context):
    def fail(*_):
        raise OSError("no space left")

    job.Claims.finish = watchdog.dump_stacks = fail
    time.sleep(60)

async def save_slowly(spec, context):
    copy = store._copy_hashed

    def copy_slowly(*given):
        time.sleep(0.5)
        return copy(*given)

    store._copy_hashed, store.TRANSFERS = copy_slowly, 1
    folder = context.scratch / "checkpoint"
    folder.mkdir()
    for name in "abcdefgh":
        (folder / name).touch()
    context.checkpoints.save(1, folder)
    return {}

async def wait(spec, context):
    print("waits", flush=True)
    await asyncio.sleep(60)

job.STOP_GRACE_SECONDS = 0.5
job.body_of = lambda kind: globals()[sys.argv[3]]
sys.exit(job.main(sys.argv[1], sys.argv[2]))
"""


def _start(
    tmp_path: Path, body: str, stall_seconds: float
) -> tuple[subprocess.Popen[bytes], Claims]:
    store = Store(str(tmp_path / "store"))
    given = JobInput(
        job="job", stage="agent-sft", kind="sft", spec_name="sft", digest=DIGEST,
        attempt=1, inputs={}, spec=SPEC.model_dump(), pool=Resources(),
        resources=StageResources(stall_seconds=stall_seconds),
    )  # fmt: skip
    store.write(job_path("job"), given.model_dump_json().encode())
    process = subprocess.Popen(
        [sys.executable, "-c", JOB, store.root, "job", body],
        env=os.environ
        | {"TRIBUTARY_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=(tmp_path / "log").open("wb"), stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    return process, Claims(store, "sft", DIGEST)


def _end(claims: Claims) -> End:
    end = claims.end_of(1)
    assert end is not None
    return end


def test_a_stage_that_stands_still_ends_with_the_stacks_of_all_its_processes(
    tmp_path: Path,
) -> None:
    process, claims = _start(tmp_path, "hang", 2.0)
    try:
        process.wait(60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the child that its body left
    assert process.returncode == EXIT_FAILED, (tmp_path / "log").read_text()
    end = _end(claims)
    assert (end.error, end.retryable) == ("StageStalled", True)
    assert "within 2 s" in end.message
    (path,) = (tmp_path / "home" / "logs" / "stacks").iterdir()
    assert str(path) in end.message
    stacks = path.read_text()
    assert "in hang" in stacks, "its own"
    assert "stuck" in stacks, "its child's"
    waiting = stacks.partition("1 x rollout p#0")[2].partition(" x ")[0]
    assert "in rollout" in waiting, "a coroutine that no thread runs"
    assert "in judge" in waiting, "what it waits in"
    assert not list((tmp_path / "home" / "work").iterdir())


def test_it_ends_also_where_its_stacks_and_its_end_cannot_be_written(tmp_path: Path) -> None:
    process, claims = _start(tmp_path, "hang_without_disk", 2.0)
    try:
        assert process.wait(60) == EXIT_FAILED
    finally:
        process.kill()
    assert claims.end_of(1) is None
    said = (tmp_path / "log").read_text()
    assert "What each process was doing: could not be written down (OSError: no space left)" in said


def test_a_long_way_to_the_store_is_no_standstill(tmp_path: Path) -> None:
    process, claims = _start(tmp_path, "save_slowly", 2.0)
    try:
        process.wait(60)
    finally:
        process.kill()
    assert _end(claims).outcome == "done", (tmp_path / "log").read_text()


class _Launcher(LocalLauncher):
    """Its jobs only hang; to stop one fails the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.stopped = threading.Event()

    def stop(self, job: str) -> None:
        self.asked += 1
        if self.asked == 1:
            raise EngineError("the cluster's head does not answer")
        self.stopped.set()


def test_a_job_that_hangs_is_stopped_once_its_launcher_answers(tmp_path: Path) -> None:
    store, launcher = Store(str(tmp_path / "store")), _Launcher()
    claims, owner = Claims(store, "sft", DIGEST), Owner(home="h", launcher="l", job="j", run="r")
    claim = claims.take(1, owner)
    assert claim is not None
    place = RunPlace(
        store, ArtifactStore(store, tmp_path), launcher, "h", "r", Resources(),
        silent_seconds=0.12, begin_seconds=0.1,
    )  # fmt: skip
    with _vigil(place, claims, claim):
        assert launcher.stopped.wait(10.0)
    assert launcher.asked == 2


def test_a_stage_that_is_asked_to_stop_between_two_steps_ends_soon(tmp_path: Path) -> None:
    process, claims = _start(tmp_path, "wait", 60.0)
    try:
        while "waits" not in (tmp_path / "log").read_text():
            assert process.poll() is None
            time.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == EXIT_STOPPED
    finally:
        process.kill()
    assert time.monotonic() - began < 10
    assert _end(claims).outcome == "stopped"


def test_waiting_for_what_others_hold_is_no_standstill() -> None:
    pulse = Pulse()
    time.sleep(0.05)
    assert pulse.idle_seconds > 0.04
    before = time.monotonic()
    with pulse.waiting():
        assert pulse.idle_seconds == 0.0
    assert pulse.idle_seconds <= time.monotonic() - before, "what was before the wait is over"
