"""Runs a repository's own tests, for the one who works on it. What it says decides no reward."""

from __future__ import annotations

from infra.repositories.files import Files
from infra.sandbox.contract import SandboxRefused, Snapshot
from infra.sandbox.limits import SandboxResult
from infra.sandbox.pool import Pool

MOST_TOLD = 1_000
"""characters of a report"""
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
