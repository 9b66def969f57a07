"""Tests of a program that answers a problem in one turn, in the forms in which data sets hold them.

asserts    a text, or a list of texts (MBPP), with functions and classes of `pytest` (KodCode) or
           classes of `unittest` (BigCodeBench), or with a `check(candidate)` and the `entry_point`
           that it is called with (HumanEval)
pairs      {"inputs": [...], "outputs": [...]} (APPS, TACO, verl), with `fn_name` calls of that
           function, else standard input and output; `input` and `output` (CodeContests); or a
           list of objects with `input` and `output` (PrimeIntellect), of a program or a function:
           `fn_name` in each, or the type `functional` and an `entry_point` (LiveCodeBench)
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from infra.data_files.assert_names import asks_an_answer, read_names
from infra.errors import InputError

_PAIR = ("input", "output")
_OF_PROGRAMS, _OF_CALLS = ("stdin", "stdin_stdout"), ("functional", "function_call")
"""what tests in lists call their types"""
OTHER_CHECKS = ("checker", "generated_checker", "is_interactive", "interaction_format")
"""what a test says whose output may differ from the one that is given"""
_ASSERTING = {"exit", "fail", "raises"}
"""calls that fail a test without a statement `assert`"""
_OF_PYTEST = {"approx", "fail", "fixture", "main", "mark", "param", "raises"}
_OF_UNITTEST = {"TestCase", "TestLoader", "TestSuite", "TextTestRunner", "main", "makeSuite"}
"""what these have here; of the second, `TestCase` is what counts"""
_MORE_THAN_VALUES = re.compile("assert(No)?Logs|assertWarns(Regex)?|skipTest")
_OUTPUT = {"redirect_stdout", "redirect_stderr"}
_AROUND = {
    "load_tests", "setUpModule", "tearDownModule", "setup_function", "setup_module",
    "teardown_function", "teardown_module",
}  # fmt: skip
"""functions by which a framework runs tests in another way"""
_ELSEWHERE = "the answer runs in another process"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """Asserts, or the pairs of standard input and output."""

    asserts: str = ""
    """Python; names that it uses and nothing defines are the answer's, or of Python's library"""
    entry_point: str = ""
    """the one name of the answer's that the asserts use; empty: all such names"""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what `read_code_tests` reads as the same tests."""
        if not self.asserts:
            return {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        return {"asserts": self.asserts, "entry_point": self.entry_point}


def read_code_tests(value: Any, entry_point: str = "", setup: str = "") -> CodeTests:
    """The tests that a value holds, also one as JSON text; `setup` is Python that comes before
    asserts. Raises InputError for what is no such form."""
    value = _parsed(value)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    if items and all(isinstance(each, str) for each in items):
        value = "\n".join(items)
    elif items and all(isinstance(each, Mapping) for each in items):
        value = _listed(cast("list[Mapping[str, Any]]", items), entry_point)
    if isinstance(value, str) and value.strip():
        asserts = "\n".join(filter(None, (setup, value)))
        if fault := _fault(asserts, entry_point):
            raise InputError(fault)
        return CodeTests(asserts=asserts, entry_point=entry_point)
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        if "asserts" in given:
            return read_code_tests(given["asserts"], given.get("entry_point") or entry_point, setup)
        if other := next((name for name in OTHER_CHECKS if given.get(name)), ""):
            raise InputError(f"holds `{other}`, and output is only compared; leave such rows out")
        if pairs := _pairs(given):
            return pairs
    raise InputError(
        "is no tests: write asserts (a text or a list of texts), or as many `inputs` as `outputs`"
    )


def _fault(asserts: str, entry_point: str) -> str:
    """Return what keeps a text from testing anything, in words; empty for nothing."""
    try:
        tree = ast.parse(asserts)
    except (ValueError, RecursionError, SyntaxError) as error:
        return f"its asserts do not run: {type(error).__name__}: {error}"
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare):
            return f"`{ast.unparse(node)[:80]}` tests nothing; write `assert` before it"
    if other := next(_unsupported(tree), ""):
        return f"{other}; leave such rows out"
    try:
        names = read_names(tree, entry_point)
    except RecursionError:
        return "its asserts do not run: they are nested too deeply"
    if names.fault:
        return names.fault
    if not asks_an_answer(tree, names):
        return (
            "its asserts ask nothing of the answer: they call no name that they do not define; name"
            " the tested function as `entry_point`"
        )
    nodes = list(ast.walk(tree))
    is_testing = (ast.Assert, ast.Raise)
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = {getattr(each, "attr", getattr(each, "id", "")) for each in calls}
    calls_one = any(name in _ASSERTING or name.startswith("assert") for name in names)
    if calls_one or any(isinstance(node, is_testing) for node in nodes):
        return ""
    return "holds no assert, so that any answer would pass"


def _unsupported(tree: ast.Module) -> Iterator[str]:
    """Yield what of the frameworks is not there where tests run, apart from the answer, in
    words."""
    yield from _unsupplied(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _unsupported_imports(node)
        elif isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"its test `{node.name}` is asynchronous, and is not awaited here"
        elif isinstance(node, ast.FunctionDef) and node.name in _AROUND:
            yield f"defines `{node.name}`, which is not called here"
        elif isinstance(node, ast.Name) and node.id in _OUTPUT:
            yield f"looks at what is printed (`{node.id}`), and {_ELSEWHERE}"
        elif isinstance(node, ast.Attribute):
            yield from _unsupported_attribute(node)
        elif isinstance(node, ast.Call) and _dotted(node.func) == "pytest.fixture":
            for given in map(ast.unparse, node.keywords):
                if given != "scope='function'":
                    yield f"has a fixture with `{given}`, and each is made for one test here"


def _unsupplied(tree: ast.Module) -> Iterator[str]:
    """Yield what a test asks for by a parameter, and no fixture or list of cases gives."""
    given = {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            marks = [getattr(each, "func", each) for each in node.decorator_list]
            is_fixture = {"pytest.fixture", "fixture"} & {*map(_dotted, marks)}
            given |= {node.name} if is_fixture else set()
        elif isinstance(node, ast.Call) and _dotted(node.func).endswith("mark.parametrize"):
            given |= {*re.findall(r"\w+", ast.unparse(node.args[0]) if node.args else "")}
    classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and _tests(node)]
    for node in (node for body in (tree.body, *classes) for node in body):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            every = [*node.args.posonlyargs, *node.args.args]
            asked = [each.arg for each in every[: len(every) - len(node.args.defaults)]]
            if others := [name for name in asked if name not in given]:
                yield f"its test `{node.name}` asks for `{others[0]}`, which nothing here gives"


def _tests(made: ast.ClassDef) -> bool:
    return made.name.startswith("Test") or any(
        _dotted(base).endswith("TestCase") for base in made.bases
    )


def _dotted(node: ast.AST) -> str:
    """Return a name with its attributes, e.g. `pytest.mark`; empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _unsupported_imports(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    of = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    known = {"unittest": _OF_UNITTEST, "pytest": _OF_PYTEST}.get(of)
    for name in [alias.name for alias in node.names]:
        if "mock" in f"{of}.{name}".split("."):
            yield f"replaces parts of what is tested (`mock`), and {_ELSEWHERE}"
        elif known is not None and name not in known:
            yield f"imports `{name}` of `{of}`; known here: {', '.join(sorted(known))}"


def _unsupported_attribute(node: ast.Attribute) -> Iterator[str]:
    of = _dotted(node.value)
    known = {"unittest": _OF_UNITTEST, "pytest": _OF_PYTEST, "pytest.mark": {"parametrize"}}
    if of in known and node.attr not in known[of]:
        yield f"uses `{of}.{node.attr}`; known here: {', '.join(sorted(known[of]))}"
    elif of == "self" and _MORE_THAN_VALUES.fullmatch(node.attr):
        yield f"uses `self.{node.attr}`, which looks at more than values, and {_ELSEWHERE}"
    elif node.attr in _OUTPUT or (
        of == "sys" and node.attr in ("stdout", "stderr") and isinstance(node.ctx, ast.Store)
    ):
        yield f"looks at what is printed (`{of}.{node.attr}`), and {_ELSEWHERE}"


def _listed(items: Sequence[Mapping[str, Any]], entry_point: str) -> dict[str, Any]:
    """One object of what each item holds. Raises InputError where they are not of one kind."""
    said = [each.get("testtype") or each.get("type") for each in items]
    kinds = {str(each).lower() for each in said if each} or {""}
    names = {each.get("fn_name") or each.get("func_name") for each in items}
    if len(kinds) > 1 or len(names) > 1:
        raise InputError("mixes calls of functions with programs; write rows of one kind")
    (kind,), (name,) = kinds, names
    if kind and kind not in _OF_CALLS + _OF_PROGRAMS:
        raise InputError(f"has the type {kind!r}; known: {', '.join(_OF_PROGRAMS + _OF_CALLS)}")
    made: dict[str, Any] = {
        name: [each.get(name, each.get(f"{name}s")) for each in items] for name in _PAIR
    }
    for other in OTHER_CHECKS:
        made[other] = next((each[other] for each in items if each.get(other)), None)
    if kind in _OF_CALLS or (name and not kind):
        made["fn_name"] = name or entry_point
        if not made["fn_name"]:
            raise InputError(f"has the type {kind!r} without a function; name it as `entry_point`")
    return made


def _pairs(given: Mapping[str, Any]) -> CodeTests | None:
    ins, outs = (given.get(f"{name}s", given.get(name)) for name in ("input", "output"))
    if not isinstance(ins, list) or not isinstance(outs, list):
        return None
    inputs, outputs = cast("list[Any]", ins), cast("list[Any]", outs)
    name = given.get("fn_name")
    if not inputs or len(inputs) != len(outputs) or None in (inputs if name else inputs + outputs):
        return None
    if name:
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"`fn_name`: {name!r:.40} is no name of a function")
        pairs = zip(inputs, outputs, strict=True)
        lists = [cast("list[Any]", each) for each in outputs if isinstance(each, list)]
        may_wrap = bool(lists) and all(len(each) == 1 for each in lists)  # as in APPS
        return CodeTests(
            asserts="\n".join(_call(name, given, wanted, may_wrap) for given, wanted in pairs),
            entry_point=name,
        )
    return CodeTests(inputs=tuple(map(_text, inputs)), outputs=tuple(map(_text, outputs)))


def _call(name: str, given: Any, wanted: Any, may_wrap: bool) -> str:
    """Return an assert for a call: its arguments are a list, or one JSON value a line; then what is
    wanted is JSON as well. `__same__` is there where the asserts run; `may_wrap`: what is wanted
    may be in a list of its own."""
    if isinstance(given, str):
        try:
            given = [json.loads(line) for line in given.strip().splitlines()]
            wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
        except ValueError as error:
            raise InputError(f"a call of `{name}` is no JSON, one value a line: {error}") from None
    if not isinstance(given, list):
        raise InputError(f"a call of `{name}` has no list of arguments, but {given!r:.40}")
    more = ", True" if may_wrap and isinstance(wanted, list) else ""
    return f"assert __same__({name}(*{given!r}), {wanted!r}{more})"


def _text(value: Any) -> str:
    """A list holds lines."""
    if isinstance(value, list):
        return "\n".join(map(_text, cast("list[Any]", value)))
    return value if isinstance(value, str) else json.dumps(value)


def _parsed(value: Any) -> Any:
    """Return what a text holds as JSON, if that is a list or an object; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, Sequence | Mapping) else value
