"""Trying one mutant: a forked process in which torch is loaded and our own code is not yet.

The mutant's file is written into a copy of the repository, so that processes which a test starts
see it too. The fork imports our modules and the tests anew and runs one test file after the other
until a test fails.

What bounds a trial is the processor time of each of its processes, which other work on the machine
does not change. A mutant that waits for ever uses none: those are ended after a number of looks,
which a paused or crowded machine makes fewer of, not more.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import math
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

OURS = ("flows", "tasks", "curricula", "rewards", "engines", "infra", "tests")
PYTEST = ["-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore"]
TIMEOUT = "timeout"
LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Bounds:
    cpu_seconds: int
    """of each process"""
    looks: int
    """`LOOK_SECONDS` apart"""

    @classmethod
    def of(cls, usual_seconds: float, num_files: int) -> Bounds:
        """`usual_seconds`: processor time of the tests without a mutant, watched; a test file takes
        a second to be read."""
        cpu_seconds = math.ceil(5 + 2 * usual_seconds + 2 * num_files)
        return cls(cpu_seconds, round((120 + 10 * cpu_seconds) / LOOK_SECONDS))


def load_libraries(files: Sequence[str]) -> None:
    """Import what pytest and the tests import, and forget our own modules again."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        pytest.main(["--version", "--version"])
        importlib.import_module("tests.conftest")
        for file in files:
            importlib.import_module(file.removesuffix(".py").replace("/", "."))
    for name in list(sys.modules):
        ours = name.split(".")[0] in OURS and not name.startswith(
            ("tests.programs.mutants", "tests.programs.bench")
        )
        # The namespace package itself is needed to import more of it.
        if ours and name != "tests":
            del sys.modules[name]
    importlib.invalidate_caches()
    # pytest collects garbage several times a run: in a fork only what the fork itself has made.
    gc.collect()
    gc.freeze()


def use_few_examples() -> None:
    """The same examples for every mutant, none shrunk: only whether a test fails matters."""
    from hypothesis import Phase, settings

    few = settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=25,
        phases=[Phase.explicit, Phase.generate],
    )
    settings.register_profile("mutants", few)
    settings.load_profile("mutants")


def try_mutant(
    file: Path, source: str, stages: Sequence[Sequence[str]], bounds: Bounds
) -> str | None:
    """The test that killed it, `timeout`, or None. `file` is put back afterwards."""
    original = file.read_text()
    file.write_text(source)
    try:
        return _in_a_fork(stages, bounds)
    finally:
        file.write_text(original)


class _FirstFailure:
    """A pytest plugin: the node that failed first, or the file that cannot be imported."""

    node: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.node is None:
            self.node = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.node is None:
            self.node = report.nodeid


def _run_tests(stages: Sequence[Sequence[str]]) -> str:
    """The first test that fails, or nothing."""
    for nodes in stages:
        failure = _FirstFailure()
        if pytest.main([*PYTEST, *nodes], plugins=[failure]) != pytest.ExitCode.OK:
            return failure.node or nodes[0].partition("::")[0]
    return ""


def _in_a_fork(stages: Sequence[Sequence[str]], bounds: Bounds) -> str | None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    child = os.fork()
    if child == 0:
        _be_the_fork(stages, bounds, writing)
    os.close(writing)
    try:
        code = _exit_code(child, bounds.looks)
        said = _read(reading)
    finally:
        os.close(reading)
        _end_group(child)
    if code is None or code == -signal.SIGXCPU:
        return TIMEOUT
    # A mutant that ends the process was noticed by the first file.
    return said or (None if code == 0 else stages[0][0].partition("::")[0])


def _be_the_fork(stages: Sequence[Sequence[str]], bounds: Bounds, writing: int) -> None:
    """Does not return."""
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (bounds.cpu_seconds, bounds.cpu_seconds + 1))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.write(writing, _run_tests(stages).encode())
        code = 0
    finally:
        os._exit(code)


def _exit_code(child: int, looks: int) -> int | None:
    """None: it was ended after so many looks."""
    for _ in range(looks):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(LOOK_SECONDS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _read(pipe: int) -> str:
    """What is in it; nothing if a process that still lives could write more."""
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, 4096).decode()
    return ""


def _end_group(leader: int) -> None:
    """Processes that a killed test left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
