"""What a test is made of, as a digest: its own text and all that it uses of its file and folder.

A test that is added, or changed, leaves the digests of all others as they are.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ALL = "all tests"


def digests_of(files: Iterable[str]) -> dict[str, str]:
    """Of each test (`tests/unit/test_a.py::test_b`), of each test file, and of all."""
    made: dict[str, str] = {}
    for file in files:
        folder = sorted(Path(file).parent.glob("*.py"))
        helpers = [path.read_text() for path in folder if not path.name.startswith("test_")]
        made |= _of_file(file, Path(file).read_text(), helpers)
    made[ALL] = digest(made.values())
    return made


def digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def parts_of(source: str) -> dict[str, list[str]]:
    """Each test's name -> the statements of its module that it needs, itself among them.

    Those are what its names lead to, fixtures by the names of its parameters; a statement that
    defines no name, such as a setting, belongs to every test.
    """
    statements = ast.parse(source).body
    by_name: dict[str, list[int]] = {}
    for place, statement in enumerate(statements):
        for name in _defined(statement) or {""}:
            by_name.setdefault(name, []).append(place)
    tests = [s for s in statements if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        test.name: [ast.unparse(statements[p]) for p in _needed(test.name, statements, by_name)]
        for test in tests
        if test.name.startswith("test_")
    }


def _of_file(file: str, source: str, helpers: Sequence[str]) -> dict[str, str]:
    of_tests = {
        f"{file}::{name}": digest([*texts, *helpers]) for name, texts in parts_of(source).items()
    }
    return {file: digest([source, *helpers]), **of_tests}


def _needed(
    name: str, statements: Sequence[ast.stmt], by_name: Mapping[str, list[int]]
) -> list[int]:
    found: set[int] = set()
    waiting = [*by_name[name], *by_name.get("", []), *by_name.get("pytestmark", [])]
    while waiting:
        place = waiting.pop()
        if place not in found:
            found.add(place)
            for used in _used(statements[place]):
                waiting += by_name.get(used, [])
    return sorted(found)


def _defined(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
        case ast.Assign() | ast.AnnAssign():
            return _stored_in(statement)
        case _:
            return set()


def _stored_in(statement: ast.stmt) -> set[str]:
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _used(statement: ast.stmt) -> set[str]:
    nodes = list(ast.walk(statement))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {
        n.arg for n in nodes if isinstance(n, ast.arg)
    }
