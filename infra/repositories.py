"""A small repository as data: text by path, what may be edited, and what an edit does.

Tools read and edit the data; a sandbox is needed only where its code runs.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.sandbox.kinds import process
from infra.sandbox.pool import Pool
from infra.sandbox.python import Demand
from infra.sandbox.sandbox import Limits, SandboxRefused, SandboxResult, Snapshot

Files = Mapping[str, str]
MOST_TEXT = 200_000
"""characters of one file after an edit"""
MOST_LINES = 20
"""that a search shows"""
LIMITS = Limits(seconds=10.0, cpu_seconds=4, disk=4 << 20, output=64_000)
WARM = 2
AT_ONCE = 8
MOST_TOLD = 1_000
"""characters of a report"""
CALLER = """
import importlib, json, os, sys
calls, answers = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for module, function, arguments in calls:
    try:
        value = getattr(importlib.import_module(module), function)(*arguments)
        text = json.dumps({"value": value}, sort_keys=True)
    except Exception as error:
        text = json.dumps({"error": type(error).__name__})
    print(text, file=answers, flush=True)
"""


class EditRefused(Exception):
    """An edit that changes nothing; its text says why, in a line."""


def listed(files: Files) -> str:
    """The paths, one a line."""
    return "\n".join(sorted(files))


def found(files: Files, text: str) -> str:
    """Lines that hold `text`, e.g. `cat.py:2: return a + b`; or `no`."""
    lines = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted(files)
        for number, line in enumerate(files[path].splitlines(), 1)
        if text and text in line
    ]
    left = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"and {left} more"] if left > 0 else [])]) or "no"


def edited(files: Files, protected: Collection[str], path: str, old: str, new: str) -> Files:
    """The files after one replacement of `old`, which must be in the file once.

    Raises EditRefused.
    """
    if path in protected:
        raise EditRefused(f"{path} is protected")
    if path not in files:
        raise EditRefused(f"no file {path}")
    times = files[path].count(old) if old else 0
    if times != 1:
        raise EditRefused(f"that text is {times} times in {path}, not once")
    text = files[path].replace(old, new)
    if len(text) > MOST_TEXT:
        raise EditRefused(f"{path} would be longer than {MOST_TEXT} characters")
    return {**files, path: text}


def pool(demand: Demand) -> Pool:
    """Raises InputError, when a sandbox is taken, where the machine offers less than `demand`."""
    return _pool_of(os.getpid(), demand)


@functools.cache
def _pool_of(owner: int, demand: Demand) -> Pool:
    """`owner`: threads and sockets do not outlive a fork."""
    return Pool(lambda: process.start(LIMITS, demand=demand), warm=WARM, most=AT_ONCE)


RUNNER = """
import importlib, os, traceback
passed, told = 0, []
for name in sorted(os.listdir()):
    if not (name.startswith("test_") and name.endswith(".py")):
        continue
    try:
        tests = vars(importlib.import_module(name[:-3]))
    except BaseException as error:
        told.append(f"FAIL {name}: {type(error).__name__}: {error}")
        continue
    for test in [test for test in tests if test.startswith("test_")]:
        try:
            tests[test]()
            passed += 1
        except BaseException as error:
            line = traceback.extract_tb(error.__traceback__)[1:2]
            said = "" if isinstance(error, AssertionError) else f" {type(error).__name__}: {error}"
            told.append(f"FAIL {name} {test}: {line[0].line if line else ''}{said}")
print("\\n".join([*told, f"{passed} passed, {len(told)} failed"]))
"""


def report(files: Files, pool: Pool) -> str:
    """Failed tests with the line that failed, then the counts. Blocks while they run.

    Raises SandboxLost, and what taking a sandbox raises.
    """
    with pool.taken() as sandbox:
        try:
            sandbox.restore(snapshot_of(files))
        except SandboxRefused:
            return "error: the files are too large"
        return shortened(_told(sandbox.exec(["python", "-c", RUNNER])))


def snapshot_of(files: Files) -> Snapshot:
    return Snapshot.of({path: text.encode(errors="replace") for path, text in files.items()})


def shortened(text: str) -> str:
    return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}..."


def _told(result: SandboxResult) -> str:
    if result.status == "timeout":
        return "error: out of time"
    if result.status == "killed":
        return "error: the tests used too much"
    return result.stdout.strip() or result.stderr.strip() or f"exit code {result.exit_code}"


@dataclass(frozen=True, slots=True)
class Check:
    """One call, e.g. `Check("cat", "add", [2, 3], 5)`; values as JSON has them."""

    module: str
    function: str
    arguments: list[Any]
    expected: Any


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether every check holds, and the first reason why not."""

    passed: bool
    right: int
    """checks that hold"""
    reason: str = ""


def judge(
    original: Files,
    final: Files,
    protected: Collection[str],
    checks: Sequence[Check],
    pool: Pool,
) -> Judgement:
    """Judges `final`, which began as `original`. Blocks while its code runs.

    A protected file that is changed or gone fails it. Files that were not in `original` are left
    out. Raises SandboxLost, and what taking a sandbox raises: that says nothing of the code.
    """
    for path in sorted(protected):
        if final.get(path) != original[path]:
            return Judgement(False, 0, f"the protected file {path} was changed")
    kept = {path: final.get(path, "") for path in original}
    calls = [[check.module, check.function, check.arguments] for check in checks]
    with pool.taken() as sandbox:
        try:
            sandbox.restore(snapshot_of(kept))
        except SandboxRefused:
            return Judgement(False, 0, "the files are too large")
        result = sandbox.exec(["python", "-c", CALLER], stdin=json.dumps(calls).encode())
    answers = result.stdout.splitlines()
    if len(answers) != len(checks):
        return Judgement(False, 0, f"{len(answers)} of {len(checks)} calls answered")
    wrong = [
        f"{check.module}.{check.function}{tuple(check.arguments)} is {answer}"
        for check, answer in zip(checks, answers, strict=True)
        if answer != json.dumps({"value": check.expected}, sort_keys=True)
    ]
    right = len(checks) - len(wrong)
    return Judgement(not wrong, right, f"{wrong[0][:200]}, not as expected" if wrong else "")
