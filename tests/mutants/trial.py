"""Trying one mutant: a forked process in which torch is loaded and our own code is not yet.

The mutant's file is written into a copy of the repository, so that processes which a test starts
see it too. The fork imports our modules and the tests anew and runs one test file after the other
until a test fails.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

OURS = ("flows", "tasks", "curricula", "rewards", "engines", "infra", "tests")
PYTEST = ["-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore"]


def load_libraries(files: Sequence[str]) -> None:
    """Import what the tests import, and forget our own modules again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("tests.conftest")
        for file in files:
            importlib.import_module(file.removesuffix(".py").replace("/", "."))
    for name in list(sys.modules):
        ours = name.split(".")[0] in OURS and not name.startswith(("tests.mutants", "tests.bench"))
        # The namespace package itself is needed to import more of it.
        if ours and name != "tests":
            del sys.modules[name]
    importlib.invalidate_caches()


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


def run_tests(stages: Sequence[Sequence[str]]) -> int:
    """Number of the first stage in which a test fails, or -1."""
    for number, nodes in enumerate(stages):
        if pytest.main([*PYTEST, *nodes]) != pytest.ExitCode.OK:
            return number
    return -1


def try_mutant(
    file: Path, source: str, stages: Sequence[Sequence[str]], bound: float
) -> str | None:
    """The test file that killed it, `timeout`, or None. `file` is put back afterwards."""
    original = file.read_text()
    file.write_text(source)
    try:
        number = _in_a_fork(stages, bound)
    finally:
        file.write_text(original)
    if number is None:
        return "timeout"
    return None if number < 0 else stages[number][0].partition("::")[0]


def _in_a_fork(stages: Sequence[Sequence[str]], bound: float) -> int | None:
    """Of `run_tests`; None if it took longer than `bound` seconds."""
    child = os.fork()
    if child == 0:
        os.setsid()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        code = 250
        try:
            code = run_tests(stages) + 1
        finally:
            os._exit(code)
    ends = time.monotonic() + bound
    try:
        while time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                # A mutant that ends the process was noticed by the first file.
                return code - 1 if 0 <= code < 250 else 0
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None
    finally:
        _end_group(child)


def _end_group(leader: int) -> None:
    """Processes that a killed test left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
