"""The files under `hooks`: installed, and looked at without running them."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.recipe import Recipe
from infra.code.identity import PACKAGES
from infra.data_files.heads import other_kind_of
from infra.errors import InputError
from infra.user_files import HOOK_COPY, InstalledFiles, install_hooks, read_hooks, same_names

_OURS = PACKAGES | {"tests"}


def own_files(recipe: Recipe) -> InstalledFiles:
    """A recipe's own files, importable in this process from now on. Every command that takes a
    recipe and calls a part of it begins so. Raises InputError."""
    return install_hooks(read_hooks(recipe.hooks, recipe.data))


def hook_problems(hooks: Sequence[str], data: Sequence[str]) -> Iterator[str]:
    """Files that are missing, unreadable, no Python, or named so that Python finds another."""
    found = [*_files(hooks), *(f"hooks: {line}" for line in same_names(hooks))]
    yield from found
    if not found:
        try:
            read_hooks(hooks, data)
        except InputError as error:
            yield str(error)


def _files(hooks: Sequence[str]) -> Iterator[str]:
    for hook in hooks:
        path = Path(hook)
        if not path.exists():
            yield f"hooks: {hook} is missing"
        elif path.is_file() and path.suffix != ".py":
            yield f"hooks: {hook} is not a Python file"
        elif not path.stem.isidentifier():
            yield (
                f"hooks: {path.name} cannot be imported under that name; rename it to"
                " letters, digits and `_`, e.g. my_hook.py"
            )
        else:
            yield from _shadows(path)
            yield from _unreadable(path)


def _shadows(path: Path) -> Iterator[str]:
    """Hooks come last on the module path: a name that is taken means the other module."""
    taken = _taken(path)
    if taken:
        yield (
            f"hooks: {path.name} has the name of {taken}, and Python would import that one; rename"
            f" it, e.g. my_{path.name}"
        )


def _taken(path: Path) -> str:
    name = path.stem
    if name in sys.stdlib_module_names:
        return "a module of Python's own library"
    if name in _OURS:
        return "one of Tributary's packages"
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module in a broken state
        return ""
    origin = Path(found.origin) if found is not None and found.origin else None
    if origin is None or not origin.is_file() or HOOK_COPY.search(str(origin)):
        return ""
    is_itself = origin in (path.resolve(), path.resolve() / "__init__.py")
    return "" if is_itself else "an installed module"


def _unreadable(path: Path) -> Iterator[str]:
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        name = file.relative_to(path.parent)
        if said := other_kind_of(file):
            yield f"hooks: {name}: {said.partition(';')[0]}; give Python code"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                text = importlib.util.decode_source(file.read_bytes())
                compile(text, str(name), "exec", dont_inherit=True)
        except SyntaxError as error:
            line = f"line {error.lineno}: " if error.lineno else ""
            yield f"hooks: {name}: {line}{error.msg}"
        except UnicodeDecodeError as error:
            yield f"hooks: {name}: {error}; save the file as UTF-8"
        except ValueError as error:
            yield f"hooks: {name}: {error}"
