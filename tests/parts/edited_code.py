"""Edits of a copy of our code, for tests of what then runs again."""

from __future__ import annotations

import ast
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from infra.code.identity import LookedUp


@contextmanager
def edited(file: Path, added: str = "\n# edited\n") -> Generator[None]:
    text = file.read_text()
    file.write_text(text + added)
    try:
        yield
    finally:
        file.write_text(text)


def change_functions(file: Path, name: str = "") -> None:
    """Change every function of the file, or one, or every method of the class of that name."""
    text = file.read_text().splitlines()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [*ast.walk(ast.parse("\n".join(text)))]
    if name:
        named = (n for n in nodes if isinstance(n, (*kinds, ast.ClassDef)) and n.name == name)
        nodes = [inner for node in named for inner in ast.walk(node)]
    functions = [node for node in nodes if isinstance(node, kinds)]
    assert functions, f"{file} has no function {name}"
    for node in sorted(functions, key=lambda node: -node.body[-1].lineno):
        last = node.body[-1]
        if last.lineno > node.lineno:
            text.insert(last.lineno - 1, f"{' ' * last.col_offset}edited = 1")
    file.write_text("\n".join(text))


def without(known: LookedUp, file: str) -> LookedUp:
    """An edit of functions' bodies changes what they lead to, and not what names stand for."""
    edited = file.removesuffix(".py").replace("/", ".")
    return LookedUp(
        next={unit: leads for unit, leads in known.next.items() if unit[0] != edited},
        modules={name: module for name, module in known.modules.items() if name != edited},
        files=known.files,
        found=known.found,
    )


def forget_installed() -> None:
    """Forget what is installed, as a new process does."""
    from infra.code import identity as code

    for name in ("_origin", "_folder_of", "_version_of", "_distributions"):
        getattr(code, name).cache_clear()
