"""A process is recognised by its pid and birth, whatever happens to the clock."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from infra.processes.children import birth_of, same_process

pytestmark = pytest.mark.unit


def test_a_process_stays_the_same_when_the_clock_is_adjusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    birth, told = birth_of(os.getpid()), psutil.Process().create_time()
    boot = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 1)
    assert abs(psutil.Process().create_time() - told) > 0.5, "what psutil says follows the clock"
    assert same_process(os.getpid(), birth) == psutil.Process()


def test_another_process_of_the_same_pid_is_another() -> None:
    boot, _, ticks = birth_of(os.getpid()).rpartition(":")
    assert same_process(os.getpid(), f"{boot}:{int(ticks) + 1}") is None
    assert same_process(os.getpid(), f"another-boot:{ticks}") is None


def test_one_that_is_over_is_nobody() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        birth = birth_of(child.pid)
        assert same_process(child.pid, birth) is not None
        child.kill()
        child.wait()
    assert same_process(child.pid, birth) is None
    with pytest.raises(psutil.NoSuchProcess):
        birth_of(child.pid)
