"""Judges a repository by what its functions return.

A check is a call and the value that it must return. Calls are made in a fresh sandbox that holds
the repository with its protected files as they were. **Expected values never enter it**: what the
code returns is compared here. So whatever it does to tests, runner, exit code, output or its own
interpreter, it can only pass by returning the right values, also for calls that its tests do not
make.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from infra.repositories.files import Files
from infra.repositories.testing import snapshot_of
from infra.sandbox.contract import SandboxRefused
from infra.sandbox.pool import Pool

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
