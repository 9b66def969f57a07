"""Asserts about a program, without the program where the asserts are.

They run in one process, the answer in another, one after the other in the same sandbox. What the
asserts ask of the answer (`f(2)`) is written down and asked there; its plain values come back as
data, and the asserts run again with them, until nothing is missing. A call whose value is not there
yet gets one that agrees with everything, so that a run finds as many calls as it can; what it says
then does not count. So an answer sees the arguments of calls, and never what is expected of them;
nothing that it patches, prints or ends, and no object of its own, is where an assert looks at it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from infra.data_files.code_tests import CodeTests
from infra.errors import InputError
from infra.sandbox.sandbox import Limits, Sandbox, SandboxResult
from rewards.code.frameworks import FRAMEWORKS

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


_VALUES = r"""
import json, os, sys
sys.set_int_max_str_digits(0)

def encode(value, key_of):
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {"dict": [[encode(each, key_of) for each in pair] for pair in value.items()]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(each, key_of) for each in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return {"object": key_of(value)}

def decode(given, object_of):
    if not isinstance(given, dict):
        return given
    ((kind, held),) = given.items()
    if kind == "dict":
        return {decode(name, object_of): decode(each, object_of) for name, each in held}
    if kind in ("list", "tuple", "set", "frozenset"):
        makes = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return makes[kind](decode(each, object_of) for each in held)
    if kind == "bytes":
        return bytes.fromhex(held)
    return complex(*held) if kind == "complex" else object_of(held)
"""
_ANSWER = f"""{_VALUES}
import types
given, out = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.stdin = open(os.devnull)

def say(**what):
    print(json.dumps(what), file=out, flush=True)

def named(error):
    try:
        return f"{{type(error).__name__}}: {{error}}"[:200]
    except BaseException:
        return "an exception without a text"

try:
    program = compile(given["code"], "answer.py", "exec")
except BaseException as error:
    say(compile_error=named(error))
    os._exit(0)
answer = sys.modules["answer"] = types.ModuleType("answer")
objects, keys = {{}}, {{}}
try:
    exec("from typing import *", vars(answer))
    exec(program, vars(answer))
except BaseException as error:
    say(runtime_error=named(error))
    os._exit(0)

def text_of(error):
    try:
        said = str(error)[:4096]
    except BaseException:
        return {{"said": "an exception without a text"}}
    try:
        return {{"said": said, "of": [encode(each, None) for each in error.args]}}
    except BaseException:  # objects of the answer's
        return {{"said": said}}

def find(key):
    if key in objects:
        return objects[key]
    if key in vars(answer) or "Solution" not in vars(answer):
        return getattr(answer, key)
    return getattr(answer.Solution(), key)

for place, spec in given["calls"]:
    def key_of(value):
        if id(value) not in keys:
            key = f"{{place}}.{{len(objects)}}"
            keys[id(value)], objects[key] = key, value
        return keys[id(value)]
    try:
        what, key, name, args, options = json.loads(spec)
        args, before = [decode(each, find) for each in args], args
        options = {{key: decode(each, find) for key, each in options.items()}}
        target = find(key)
        value = getattr(target, name) if what == "get" else target(*args, **options)
        result = {{"value": encode(value, key_of)}}
        after = [encode(each, key_of) for each in args]
        if value is None and after != before:  # what works in place returns nothing
            result["args"] = after
    except BaseException as error:
        kinds = [f"{{kind.__module__}}:{{kind.__qualname__}}" for kind in type(error).__mro__]
        result = {{"error": kinds, **text_of(error)}}
    say(**result)
os._exit(0)
"""
_ASSERTS = f"""
import sys
sys.path.remove("")  # where the answer may have left files
{_VALUES}
import ast, builtins, math, random, traceback, types
given, out = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.stdin = open(os.devnull)
random.seed(0)
known, calls, outcomes, missing = given["known"], [], [], []

class Guess:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
    def __hash__(self): return 0
    def __len__(self): return 0
    def __bool__(self): return True
    def __float__(self): return 0.0
    def __index__(self): return 0
    def __iter__(self): return iter(())

for name in ("lt", "le", "eq", "ne", "gt", "ge", "contains"):
    setattr(Guess, f"__{{name}}__", lambda *_: True)
for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Guess, f"__{{name}}__", lambda self, *_: self)
    setattr(Guess, f"__r{{name}}__", lambda self, *_: self)
for name in ("neg", "abs", "round", "getitem", "call"):
    setattr(Guess, f"__{{name}}__", lambda self, *_, **__: self)

class Remote:
    __slots__ = ("_key",)
    def __init__(self, key): self._key = key
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return ask("get", self._key, name, (), {{}})
    def __call__(self, *args, **options):
        return ask("call", self._key, "", args, options)

def key_of(value):
    if type(value) is Remote:
        return value._key
    raise TypeError(f"a {{type(value).__name__}} cannot be handed to the answer")

def ask(what, key, name, args, options):
    options = {{key: encode(each, key_of) for key, each in options.items()}}
    spec = json.dumps([what, key, name, [encode(each, key_of) for each in args], options])
    mine, told = calls[-1], known[len(calls) - 1] if len(calls) <= len(known) else []
    mine.append(spec)
    if len(mine) > len(told) or told[len(mine) - 1][0] != spec:
        del told[len(mine) - 1 :]  # asked on a guess
        missing.append(spec)
        return Guess()
    result = json.loads(told[len(mine) - 1][1])
    if "error" in result:
        kind = raised_kind(result["error"])
        try:
            failed = kind.__new__(kind)
        except TypeError:  # it is made with arguments
            failed = type(kind.__name__, (Exception,), {{}})()
        failed.args = tuple(decode(each, str) for each in result.get("of", ()))
        if str(failed) != result.get("said"):
            failed.args = (str(result.get("said")),)
        raise failed
    value = decode(result["value"], Remote)
    for mine, after in zip(args, result.get("args", ()) if value is None else ()):
        after = decode(after, Remote)
        if type(mine) is list and type(after) is list:
            mine[:] = after
        elif type(mine) in (dict, set) and type(after) is type(mine):
            mine.clear()
            mine.update(after)
    return value

def raised_kind(told):
    named = [str(each).partition(":") for each in told] if isinstance(told, list) else []
    for place, (module, _, name) in enumerate(named):
        is_ours = module.partition(".")[0] in ("unittest", "pytest")  # it would say: skipped
        kind = getattr(None if is_ours else sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            if issubclass(kind, StopIteration):  # it would end an `all(map(...))`
                kind, place = Exception, 1
            return type(named[0][2], (kind,), {{}}) if place else kind
    return type(named[0][2] if named else "NoValue", (Exception,), {{}})

def same(value, wanted, may_wrap=False):
    if isinstance(value, tuple):
        value = list(value)
    return is_same(value, wanted) or (may_wrap and is_same(value, wanted[0]))

def is_same(value, wanted):
    if isinstance(value, (list, tuple)) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(is_same, value, wanted))
    if isinstance(value, dict) and isinstance(wanted, dict):
        value = {{str(name): each for name, each in value.items()}}
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
        said = "" if type(error) is AssertionError else f"{{type(error).__name__}}: {{error}}"
        where = given["tests"].splitlines()[lines[-1] - 1].strip() if lines else ""
        outcome = [not isinstance(error, AssertionError), f"{{where[:200]}} {{said[:200]}}".strip()]
    if outcome and not any(calls):
        stop(outcome[1])
    if outcome or num_checks > before or (calls[-1] if counts == "asks" else counts):
        outcomes.append(outcome)

def stop(why):
    print(json.dumps({{"unreadable": why}}), file=out, flush=True)
    os._exit(0)

{FRAMEWORKS}
PLACE, entry = "<tests>", given["entry_point"]
try:
    tree = ast.parse(given["tests"], PLACE)
except BaseException as error:
    stop(f"{{type(error).__name__}}: {{error}}")
used, made, testing = set(), set(), {{"exit", "fail", "raises"}}

def tests_something(part):
    called = [node.func for node in ast.walk(part) if isinstance(node, ast.Call)]
    called = {{getattr(each, "attr", getattr(each, "id", "")) for each in called}}
    return any(isinstance(node, ast.Raise) for node in ast.walk(part)) or bool(called & testing)

def is_main(part):
    return isinstance(part, ast.If) and "__name__" in ast.dump(part.test)

for node in ast.walk(tree):
    if isinstance(node, ast.Name):
        (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        made.add(node.name)
    elif isinstance(node, ast.arg):
        made.add(node.arg)
    elif isinstance(node, ast.alias):
        made.add((node.asname or node.name).partition(".")[0])
    elif isinstance(node, ast.Assert):
        count, guess = (
            ast.Call(ast.Name(name, ast.Load()), [], []) for name in ("__counts__", "__guesses__")
        )
        node.test = ast.BoolOp(ast.And(), [count, ast.BoolOp(ast.Or(), [node.test, guess])])
answer = sys.modules["solution"] = types.ModuleType("solution")
answer.__getattr__, answer.__all__ = Remote, []
names = {{"__name__": "tests", "__same__": same, "inf": math.inf, "nan": math.nan}}
names["__guesses__"], names["__counts__"] = lambda: bool(missing), count_check
asked = [entry] if entry else [name for name in used - made if not hasattr(builtins, name)]
names.update({{name: Remote(name) for name in asked if name not in names}})
ast.fix_missing_locations(tree)
for part in tree.body:
    counts = "asks" if tests_something(part) and not is_main(part) else ""
    if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
        testing |= {{part.name}} if counts else set()
        counts = ""
    program = compile(ast.Module([part], []), PLACE, "exec")
    attempt(counts, lambda: exec(program, names))
if entry and isinstance(names.get("check"), types.FunctionType):
    attempt(True, lambda: names["check"](names[entry]))
run_tests()
outcomes = outcomes or [[False, "no test ran"]]
report = {{"calls": calls, "outcomes": outcomes, "is_missing": bool(missing)}}
print(json.dumps(report), file=out, flush=True)
"""


def judge_asserts(
    sandbox: Sandbox, code: str, tests: CodeTests, limits: Limits, tester: Limits
) -> Outcome:
    """Blocks while they run; `limits` are of a run of the answer, `tester` of one of the asserts.
    Raises InputError for tests that no answer can pass, as they fail before they ask it anything.
    """
    known: list[list[tuple[str, str]]] = []
    fault: Fault = ""
    reason, began = "", time.monotonic()
    while True:
        given = {"tests": tests.asserts, "entry_point": tests.entry_point, "known": known}
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
        result = _run(sandbox, _ANSWER, {"code": code, "calls": asked}, limits)
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
