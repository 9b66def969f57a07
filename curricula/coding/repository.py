"""Draws a repository of several files in which one function has a bug and one test fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curricula.coding.python_functions import (
    NAMES,
    SHORT_NAMES,
    Function,
    missing_branch,
    off_by_one,
    passed_on,
    short_branch,
    short_key,
    short_off_by_one,
    short_operator,
    subtraction,
    swapped_arguments,
    wrong_key,
    wrong_operator,
)

Drawn = Callable[[str, random.Random], Function]
SIMPLE: Mapping[str, Drawn] = {
    "operator": wrong_operator,
    "off-by-one": off_by_one,
    "branch": missing_branch,
    "key": wrong_key,
}
SHORT: Mapping[str, Drawn] = {
    "operator": short_operator,
    "off-by-one": short_off_by_one,
    "branch": short_branch,
    "key": short_key,
}
SWAPPED = "swapped"
"""the kind of bug whose function calls one of another module"""
KINDS = (*SIMPLE, SWAPPED)


BETWEEN = "\n\n\n"
"""two functions of a file"""


@dataclass(frozen=True, slots=True)
class Size:
    """`functions` in each of `modules`, the broken one among them."""

    modules: int
    functions: int
    is_hidden: bool = False
    """no test calls the broken function itself, only one of another module that calls it"""
    is_short: bool = False
    """functions of one short line, and few names"""

    @property
    def simple(self) -> Mapping[str, Drawn]:
        """Functions that call no other, by the kind of their bug."""
        return SHORT if self.is_short else SIMPLE

    @property
    def names(self) -> Sequence[str]:
        return SHORT_NAMES if self.is_short else NAMES


@dataclass(slots=True)
class _Module:
    name: str
    functions: list[Function] = field(default_factory=list[Function])
    is_tested: dict[str, bool] = field(default_factory=dict[str, bool])

    def add(self, function: Function, is_tested: bool = True) -> None:
        self.functions.append(function)
        self.is_tested[function.name] = is_tested

    def text(self, broken: Function | None) -> str:
        imports = "".join(dict.fromkeys(f.imports for f in self.functions if f.imports))
        bodies = [f.broken if f is broken else f.text for f in self.functions]
        return (f"{imports}\n\n" if imports else "") + "\n\n".join(bodies)


@dataclass(frozen=True, slots=True)
class Repository:
    """A drawn repository; `fix` is the path, the text to replace and what replaces it."""

    files: dict[str, str]
    protected: list[str]
    checks: list[list[Any]]
    """module, function, arguments, value: calls of its tests first, then others"""
    fix: tuple[str, str, str]
    guess: tuple[str, str, str]
    """the edit of somebody who opens any one module and takes a function of it for the broken one:
    the fix if it is, else a new bug"""
    opened: list[str]
    """the files that lead from the failing test to the bug, in order"""
    report: str
    """what the tests say before any edit, where that is known without running them; else empty"""


def draw_repository(rng: random.Random, kind: str, size: Size) -> Repository:
    """One with a bug of `kind`."""
    names = iter(rng.sample(size.names, size.modules * (size.functions + 1) + 3))
    modules = [_Module(next(names)) for _ in range(size.modules)]
    place, *others = rng.sample(modules, size.modules)
    broken, opened = _broken(kind, rng, size, place, others, names), [f"{place.name}.py"]
    place.add(broken, is_tested=not size.is_hidden)
    if size.is_hidden:
        others[0].add(passed_on(next(names), broken, place.name))
        opened.insert(0, f"{others[0].name}.py")
    for module in modules:
        while len(module.functions) < size.functions:
            module.add(size.simple[rng.choice(list(size.simple))](next(names), rng))
        rng.shuffle(module.functions)
    files = {f"{module.name}.py": module.text(broken) for module in modules}
    tests, checks = _tests(rng, modules)
    return Repository(
        files={**files, **tests},
        protected=sorted(tests),
        checks=checks,
        fix=_fix(f"{place.name}.py", files[f"{place.name}.py"], broken),
        guess=_guess(f"{modules[0].name}.py", files[f"{modules[0].name}.py"], modules[0], broken),
        opened=opened,
        report=_report(place, broken, checks, len(modules)) if size.is_short else "",
    )


def _broken(
    kind: str,
    rng: random.Random,
    size: Size,
    place: _Module,
    others: list[_Module],
    names: Iterator[str],
) -> Function:
    if kind != SWAPPED:
        return size.simple[kind](next(names), rng)
    called = subtraction(next(names))
    others[-1].add(called)
    return swapped_arguments(next(names), called.name, others[-1].name, rng)


def _tests(rng: random.Random, modules: list[_Module]) -> tuple[dict[str, str], list[list[Any]]]:
    """Return a file of tests for each module, and the checks."""
    files: dict[str, str] = {}
    shown: list[list[Any]] = []
    hidden: list[list[Any]] = []
    for module in modules:
        tests: list[str] = []
        for function in module.functions:
            calls, more = function.calls(rng)
            if not module.is_tested[function.name]:
                calls, more = [], [*calls, *more]
            lines = [_assertion(function, call) for call in calls]
            if lines:
                tests.append(f"def test_{function.name}():\n" + "".join(lines))
            shown += [_check(module, function, call) for call in calls]
            hidden += [_check(module, function, call) for call in more]
        names = ", ".join(f.name for f in module.functions if module.is_tested[f.name])
        if tests:
            files[f"test_{module.name}.py"] = "\n\n".join(
                [f"from {module.name} import {names}\n", *tests]
            )
    return files, [*shown, *hidden]


def _report(place: _Module, broken: Function, checks: list[list[Any]], tests: int) -> str:
    """Return the report on modules with one test each, where a bug gives a wrong value and never an
    error."""
    calls = [row[2] for row in checks if row[:2] == [place.name, broken.name]]
    failing = next(call for call in calls if broken.wrong(*call) != broken.right(*call))
    line = _assertion(broken, failing).strip()
    where = f"test_{place.name}.py test_{broken.name}"
    return f"FAIL {where}: {line}\n{tests - 1} passed, 1 failed"


def _assertion(function: Function, call: list[Any]) -> str:
    arguments = ", ".join(map(repr, call))
    return f"    assert {function.name}({arguments}) == {function.right(*call)!r}\n"


def _check(module: _Module, function: Function, call: list[Any]) -> list[Any]:
    return [module.name, function.name, call, function.right(*call)]


def _guess(path: str, text: str, module: _Module, broken: Function) -> tuple[str, str, str]:
    """Which module is the first one does not depend on where the bug is."""
    function = next(one for one in module.functions if one.broken != one.text)
    if function is broken:
        return _fix(path, text, broken)
    return _edit(path, text, (function.fix, function.bug), (function.text, function.broken))


def _fix(path: str, text: str, broken: Function) -> tuple[str, str, str]:
    return _edit(path, text, (broken.bug, broken.fix), (broken.broken, broken.text))


def _edit(
    path: str, text: str, small: tuple[str, str], whole: tuple[str, str]
) -> tuple[str, str, str]:
    """The small edit, old and new text, if it is unique in its file; else that of the function."""
    old, new = small if text.count(small[0]) == 1 else whole
    return path, old, new
