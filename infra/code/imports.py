"""What a Python file imports, read from its text: nothing is imported."""

from __future__ import annotations

import ast
import contextlib
import re
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

from infra.errors import InputError

_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of all threads' trees as one: mixed, they raise SystemError"""
_TRIES = 10
"""a library parses in other threads too (pydantic, as a module with settings is imported)"""
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PART = re.compile(rf"{_DOTTED.pattern}:{_DOTTED.pattern}")
_VALIDATORS = {"model_validator", "field_validator", "classmethod"}


@dataclass(frozen=True, slots=True)
class Imports:
    """What one file refers to."""

    names: tuple[str, ...]
    """dotted names that it imports, inside functions too; not those for type checking only"""
    strings: tuple[str, ...]
    """strings of the form of a dotted name: processes are started with `-m` and a name"""
    only_declares: bool
    """it holds settings and the places of parts, and computes nothing"""


def imports_of(file: Path, package: str) -> Imports:
    """Parsed again only when the file changes. Raises InputError for a file that is not Python."""
    state = file.stat()
    return _parsed(file, package, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _parsed(file: Path, package: str, _mtime_ns: int, _size: int) -> Imports:
    try:
        tree = _tree(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{file} is not Python: {error}") from error
    names, strings = set[str](), set[str]()
    for name, is_import in _names_in(tree, package):
        (names if is_import else strings).add(name)
    return Imports(tuple(sorted(names)), tuple(sorted(strings)), _only_declares(tree))


def _tree(source: bytes) -> ast.Module:
    with _PARSING:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)


def _names_in(node: ast.AST, package: str) -> Iterator[tuple[str, bool]]:
    """Dotted names, and whether they are imported."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            children: list[ast.AST] = list(node.orelse)
        case ast.Import(names=names):
            yield from ((alias.name, True) for alias in names)
            return
        case ast.ImportFrom(module=module, names=names, level=level):
            base = ".".join([*_parent(package, level), *filter(None, [module])])
            yield from ((f"{base}.{alias.name}", True) for alias in names)
            return
        case ast.Constant(value=str() as text):
            if _DOTTED.fullmatch(text):
                yield text, False
            return
        case _:
            children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _names_in(child, package)


def _parent(package: str, level: int) -> list[str]:
    """The package that a relative import of this level starts from; nothing for an absolute one."""
    parts = package.split(".") if package else []
    return parts[: len(parts) - level + 1] if level else []


def _only_declares(tree: ast.Module) -> bool:
    """Whether a file holds at most its text, settings (`Config` classes) and tables of parts.

    What it says is in a spec, by value, and the parts that it names count where a spec names them:
    a new reward, or a new setting of an estimator, changes no stage that does not use it.
    """
    settings = {"Config", "Choice"}
    for statement in tree.body:
        bases = statement.bases if isinstance(statement, ast.ClassDef) else []
        if any(isinstance(base, ast.Name) and base.id in settings for base in bases):
            settings.add(cast("ast.ClassDef", statement).name)
    declares = [_declares(statement, settings) for statement in tree.body]
    is_text = all(isinstance(statement, ast.Expr) for statement in tree.body)
    return None not in declares and (is_text or any(declares))


def _declares(statement: ast.stmt, settings: Collection[str]) -> bool | None:
    """True for a declaration, False for what may appear beside one, None for anything else."""
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return False
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
            return False
        case ast.ClassDef(name=name, body=body) if name in settings:
            return True if all(map(_is_setting, body)) else None
        case ast.Assign(value=value) | ast.AnnAssign(value=value):
            if isinstance(value, ast.Dict):
                return True if all(map(_is_part, value.values)) else None
            return False if isinstance(value, ast.Subscript | ast.BinOp | ast.Name) else None
        case _:
            return None


def _is_setting(statement: ast.stmt) -> bool:
    match statement:
        case ast.AnnAssign(annotation=ast.Subscript(value=ast.Name(id="ClassVar")), value=value):
            return value is None or _is_constant(value)  # as the digest takes it
        case ast.Expr(value=ast.Constant()) | ast.AnnAssign():
            return True
        case ast.FunctionDef(
            name="parts" | "needs" | "sources"
        ):  # what the fields say, in other words
            return True
        case ast.FunctionDef(decorator_list=[_, *_] as decorators):  # it refuses, or returns as is
            return all(_name_of(decorator) in _VALIDATORS for decorator in decorators)
        case _:
            return False


def _is_constant(value: ast.expr) -> bool:
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(isinstance(item, ast.Constant) for item in items)


def _name_of(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.id if isinstance(called, ast.Name) else ""


def _is_part(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Constant)
        and isinstance(value.value, str)
        and _PART.fullmatch(value.value) is not None
    )
