"""Bounds that follow from the work: bytes to move, and signs that a silent process works."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.devices.waiting_time import SilentWork, WorkRate, folder_bytes, transfer_bound_s

pytestmark = pytest.mark.unit


def test_a_bound_grows_with_the_bytes_and_has_a_floor(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 500)
    (tmp_path / "config.json").write_bytes(b"x" * 20)
    assert folder_bytes(tmp_path) == 520
    assert folder_bytes(tmp_path / "absent") == 0
    assert transfer_bound_s(0, 60) == 60
    assert transfer_bound_s(16_000_000_000, 60) == 380


@pytest.fixture
def idle_process() -> Iterator[subprocess.Popen[bytes]]:
    code = "import time; print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_only_sleeps_does_not_work_unless_its_log_grows(
    idle_process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    log, now = tmp_path / "log", [0.0]
    work = SilentWork(idle_process.pid, log, lambda: now[0])
    now[0] = 100.0
    assert not work.has_moved()
    log.write_text("loading shard 1 of 9")
    assert work.has_moved()
    assert not work.has_moved()


def test_a_process_that_uses_a_core_works(tmp_path: Path) -> None:
    now = [0.0]
    work = SilentWork(os.getpid(), tmp_path / "log", lambda: now[0])
    end = os.times().user + 0.1
    while os.times().user < end:
        sum(range(10_000))
    now[0] = 0.01
    assert work.has_moved()


def test_a_process_that_others_leave_no_core_works(tmp_path: Path) -> None:
    """Eight that never rest on one core use an eighth of it each, less than WORKING_CORES."""
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    crowd = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(8)]
    try:
        time.sleep(1.0)
        work = SilentWork(crowd[0].pid, tmp_path / "log")
        time.sleep(2.0)
        assert work.has_moved()
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def test_work_may_take_ten_times_as_long_as_it_ever_did() -> None:
    rate = WorkRate(floor_s=60, assumed_per_s=5)
    assert rate.bound_s(1000) == 60 + 200, "nothing is measured yet"
    rate.took(1000, 2.0)
    assert rate.bound_s(1000) == 60 + 20
    rate.took(1000, 10.0)
    rate.took(5000, 10.0)
    assert rate.bound_s(1000) == 60 + 100, "the slowest counts"
    rate.took(0, 1.0)
    assert rate.bound_s(0) == 60
