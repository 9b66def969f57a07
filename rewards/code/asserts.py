"""Asserts about a program, without the program where the asserts are.

They run in one process, the answer in another, one after the other in the same sandbox. What the
asserts ask of the answer (`f(2)`) is written down and asked there; its plain values come back as
data, and the asserts run again with them, until nothing is missing. A call whose value is not there
yet gets one that agrees with everything, so that a run finds as many calls as it can; what it says
then does not count. So an answer sees the arguments of calls, and never what is expected of them;
nothing that it patches, prints or ends, and no object of its own, is where an assert looks at it.
"""

from __future__ import annotations

import ast
import functools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from infra.data_files.assert_names import AssertNames, read_names
from infra.data_files.code_tests import CodeTests
from infra.errors import InputError
from infra.sandbox.sandbox import Limits, Sandbox, SandboxResult
from rewards.code.answer_objects import OBJECTS
from rewards.code.answer_program import ANSWER
from rewards.code.assert_rewrites import REWRITES
from rewards.code.frameworks import FRAMEWORKS
from rewards.code.plain_values import VALUES

Fault = Literal["", "no_code", "compile_error", "wrong_answer", "runtime_error", "timeout"]
MOST_ROUNDS_S = 10
"""times a run's own limit, that all runs of a problem's asserts may take together"""

_SAID, _TAIL = 200, 4096
"""characters of what a program says of its end, and of its errors that are looked at"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of all tests of a problem, e.g. Outcome(2, 3, "wrong_answer", "f(2) == 4")."""

    passed: int
    of: int
    fault: Fault = ""
    """of the first that failed"""
    reason: str = ""


_ASSERTS = (
    'import sys\nsys.path.remove("")  # where the answer may have left files\n'
    + VALUES
    + r"""
import ast, math, operator, random, traceback, types
given, out = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.stdin = open(os.devnull)
random.seed(0)
known, calls, outcomes, missing = given["known"], [], [], []
"""
    + OBJECTS
    + REWRITES
    + r"""
def same(value, wanted, may_wrap=False):
    if isinstance(value, tuple):
        value = list(value)
    return is_same(value, wanted) or (may_wrap and is_same(value, wanted[0]))

def is_same(value, wanted):
    if isinstance(value, (list, tuple)) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(is_same, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):
        value = {str(name): each for name, each in value.items()}
        return value.keys() == wanted.keys() and all(is_same(value[k], wanted[k]) for k in wanted)
    if isinstance(value, float) or isinstance(wanted, float):
        is_number = isinstance(value, (int, float)) and isinstance(wanted, (int, float))
        return is_number and math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-6)
    return value == wanted

def attempt(counts, run):
    before = num_checks
    calls.append([])
    try:
        run()
        outcome = None
    except BaseException as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == PLACE]
        said = "" if type(error) is AssertionError else f"{type(error).__name__}: {error}"
        where = given["tests"].splitlines()[lines[-1] - 1].strip() if lines else ""
        outcome = [not isinstance(error, AssertionError), f"{where[:200]} {said[:200]}".strip()]
    if outcome and not any(calls):
        stop(outcome[1])
    if outcome or num_checks > before or (calls[-1] if counts == "asks" else counts):
        outcomes.append(outcome)

def stop(why):
    print(json.dumps({"unreadable": why}), file=out, flush=True)
    os._exit(0)
"""
    + FRAMEWORKS
    + r"""
PLACE, entry = "<tests>", given["entry_point"]
try:
    tree = ast.parse(given["tests"], PLACE)
except BaseException as error:
    stop(f"{type(error).__name__}: {error}")
testing = {"exit", "fail", "raises"}

def tests_something(part):
    called = [node.func for node in ast.walk(part) if isinstance(node, ast.Call)]
    called = {getattr(each, "attr", getattr(each, "id", "")) for each in called}
    raised = [node for node in ast.walk(part) if isinstance(node, ast.Try) and node.handlers]
    raised = [each for node in raised for held in (*node.body, *node.orelse)
              for each in ast.walk(held) if isinstance(each, ast.Assert)]  # what is not reached
    return bool(raised) or any(isinstance(node, ast.Raise) for node in ast.walk(part)) or bool(
        called & testing)

def is_main(part):
    return isinstance(part, ast.If) and "__name__" in ast.dump(part.test)

rewrite(tree, {*given["asked"]})
answer = sys.modules["solution"] = types.ModuleType("solution")
answer.__getattr__, answer.__all__ = Remote, []
names = {"__name__": "tests", "__same__": same, "inf": math.inf, "nan": math.nan}
names |= {"__guesses__": lambda: bool(missing), "__counts__": count_check}
names |= {"__error__": error_kind, "__now__": now, "__firmly__": firmly}
for name, (home, of) in given["library"].items():
    module = importlib.import_module(home)
    names[name] = getattr(module, of) if of else module
names.update({name: Remote(name) for name in given["asked"] if name not in names})
for part in tree.body:
    counts = "asks" if tests_something(part) and not is_main(part) else ""
    if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
        testing |= {part.name} if counts else set()
        counts = ""
    program = compile(ast.Module([part], []), PLACE, "exec")
    attempt(counts, lambda: exec(program, names))
if entry and isinstance(names.get("check"), types.FunctionType):
    attempt(True, lambda: names["check"](names[entry]))
run_tests()
attempt(False, check_equality)
outcomes = outcomes or [[False, "no test ran"]]
report = {"calls": calls, "outcomes": outcomes, "is_missing": bool(missing)}
print(json.dumps(report), file=out, flush=True)
"""
)


def judge_asserts(
    sandbox: Sandbox, code: str, tests: CodeTests, limits: Limits, tester: Limits
) -> Outcome:
    """Blocks while they run; `limits` are of a run of the answer, `tester` of one of the asserts.
    Raises InputError for tests that no answer can pass, as they fail before they ask it anything.
    """
    known: list[list[tuple[str, str]]] = []
    fault: Fault = ""
    reason, began = "", time.monotonic()
    names = _names(tests.asserts, tests.entry_point)
    while True:
        given = {
            "tests": tests.asserts,
            "entry_point": tests.entry_point,
            "asked": sorted(names.answers),
            "library": names.library,
            "known": known,
        }
        result = _run(sandbox, _ASSERTS, given, tester)
        report = _read(result.stdout)
        if "unreadable" in report:
            raise InputError(f"its asserts do not run: {str(report['unreadable'])[:_SAID]}")
        calls = cast("list[list[str]]", report.get("calls", []))
        if not known and not any(calls):
            why = ended(result, limits)[1] or "they call no name that they do not define"
            raise InputError(f"its asserts ask nothing of the answer: {why}")
        if not report:
            late = result.status == "timeout"
            told = ended(result, limits)[1] or "end before their end"
            return Outcome(0, 1, "timeout" if late else "wrong_answer", f"the asserts: {told}")
        if not report["is_missing"]:
            return _judged(report["outcomes"], fault, reason)
        if fault or time.monotonic() - began > MOST_ROUNDS_S * limits.seconds:
            return Outcome(0, 1, fault or "timeout", reason or "the asserts ask too often")
        asked = [(place, spec) for place, unit in enumerate(calls) for spec in unit]
        result = _run(sandbox, ANSWER, {"code": code, "calls": asked}, limits)
        most = len(asked) + 1  # it may have printed millions
        lines = [line for line in result.stdout.split("\n", most)[:most] if line]
        for first in ("compile_error", "runtime_error"):
            if len(lines) == 1 and (said := _read(lines[0]).get(first)):
                return Outcome(0, 1, first, str(said)[:_SAID])
        if len(lines) < len(asked):
            fault, reason = ended(result, limits)
            fault, reason = fault or "runtime_error", reason or "it ended before its time"
        told = iter([*lines, *[json.dumps({"error": "NoValue", "said": reason})] * len(asked)])
        known = [[(spec, next(told)) for spec in unit] for unit in calls]


@functools.lru_cache(maxsize=64)
def _names(asserts: str, entry_point: str) -> AssertNames:
    """Return the names once for all answers of a problem."""
    return read_names(ast.parse(asserts), entry_point)


def _judged(outcomes: Sequence[Sequence[Any] | None], fault: Fault, reason: str) -> Outcome:
    failed = [outcome for outcome in outcomes if outcome is not None]
    passed = len(outcomes) - len(failed)
    if not failed:
        return Outcome(passed, len(outcomes))
    raised, said = failed[0]
    found = fault or ("runtime_error" if raised else "wrong_answer")
    told = f"{said} ({reason})" if fault else str(said)
    return Outcome(passed, len(outcomes), found, told)


def ended(result: SandboxResult, limits: Limits) -> tuple[Fault, str]:
    """Return how a program ended, if not well."""
    late = result.status == "killed" and result.cpu_seconds > 0.9 * limits.cpu_seconds
    if result.status == "timeout" or late:
        return "timeout", f"took over {limits.cpu_seconds} s"
    if result.status == "killed":
        return "runtime_error", "was killed: it used too much"
    if result.truncated:
        return "wrong_answer", f"printed over {limits.output} bytes"
    if result.status == "ok":
        return "", ""
    lines = result.stderr[-_TAIL:].strip().splitlines()
    return "runtime_error", lines[-1][:_SAID] if lines else f"exit code {result.exit_code}"


def _run(sandbox: Sandbox, program: str, given: Any, limits: Limits) -> SandboxResult:
    stdin = json.dumps(given).encode()
    return sandbox.exec(["python", "-c", program], stdin=stdin, limits=limits)


def _read(text: str) -> dict[str, Any]:
    """Return an object in JSON; empty for anything else, as a hostile program may write
    anything."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
