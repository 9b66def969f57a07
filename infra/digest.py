"""Digests, and the identity of the code that a stage runs."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from infra.config import Config
from infra.home import SOURCE_ROOT

ROOMS = frozenset({"flows", "tasks", "engines", "rewards", "curricula", "infra"})
_MODULE_NAME = re.compile(rf"({'|'.join(sorted(ROOMS))})(\.\w+)+")
_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of all threads' trees as one: mixed, they raise SystemError"""


class CodeIdentity(Config):
    """Which code a stage runs. Only `hash` enters the stage's digest."""

    hash: str
    """sha256 over names and contents of `files` and of the user's hook files"""
    files: list[str]
    """our files in the import closure, relative to the source root"""
    version: str
    commit: str = ""
    """of the checkout; empty for an installed wheel"""
    dirty: bool = False
    """whether one of `files` differs from the commit"""


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces. Raises ValueError on NaN and infinity."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest_of(value: Any) -> str:
    """sha256 hex of a value of plain JSON types."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def code_identity(
    entry_modules: Sequence[str], hook_files: Sequence[Path], *, root: Path = SOURCE_ROOT
) -> CodeIdentity:
    """Identity of our source files that the modules import, directly or not, and of the hooks.

    Imports inside functions count, those for type checking only do not; a string that is exactly a
    module's dotted name counts as well, since processes are started with `-m` and a name.
    """
    files = sorted(_closure(root, entry_modules))
    names = [file.relative_to(root).as_posix() for file in files]
    content = {name: _sha256(file) for name, file in zip(names, files, strict=True)}
    # A hook's folder may move; its name and content may not.
    hooks = sorted([file.name, _sha256(file)] for file in hook_files)
    commit, dirty = _git_state(root, names)
    return CodeIdentity(
        hash=digest_of({"code": content, "hooks": hooks}), files=names, commit=commit, dirty=dirty,
        version=importlib.metadata.version("tributary"),
    )  # fmt: skip


def _closure(root: Path, modules: Iterable[str]) -> set[Path]:
    found: set[Path] = set()
    pending = [file for module in modules for file in _files_of(root, module)]
    while pending:
        file = pending.pop()
        if file in found:
            continue
        found.add(file)
        state = file.stat()
        for name in _imported(file, _package_of(root, file), state.st_mtime_ns, state.st_size):
            pending += _files_of(root, name)
    return found


def _files_of(root: Path, module: str) -> list[Path]:
    """The files that importing a dotted name runs: packages on the way and the module itself.

    For a name of an attribute, those of its module. Nothing for other people's modules.
    """
    parts = module.split(".")
    if parts[0] not in ROOMS:
        return []
    found: list[Path] = []
    for depth in range(1, len(parts) + 1):
        path = root.joinpath(*parts[:depth])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            found.append(file)
    return found


def _package_of(root: Path, file: Path) -> str:
    return ".".join(file.relative_to(root).parent.parts)


@lru_cache(maxsize=4096)
def _imported(file: Path, package: str, _mtime_ns: int, _size: int) -> tuple[str, ...]:
    """Dotted names that a file imports; parsed again only when the file changes."""
    with _PARSING:
        tree = ast.parse(file.read_bytes())
    return tuple(sorted(set(_names_in(tree, package))))


def _names_in(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            children: list[ast.AST] = list(node.orelse)
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
            return
        case ast.ImportFrom(module=module, names=names, level=level):
            base = ".".join([*_parent(package, level), *filter(None, [module])])
            yield from (f"{base}.{alias.name}" for alias in names)
            return
        case ast.Constant(value=str() as text):
            if _MODULE_NAME.fullmatch(text):
                yield text
            return
        case _:
            children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _names_in(child, package)


def _parent(package: str, level: int) -> list[str]:
    """The package that a relative import of this level starts from; nothing for an absolute one."""
    parts = package.split(".")
    return parts[: len(parts) - level + 1] if level else []


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _git_state(root: Path, files: Sequence[str]) -> tuple[str, bool]:
    """Commit of the checkout and whether one of the files differs from it."""
    if not (root / ".git").exists():
        return "", False
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        return commit, bool(_git(root, "status", "--porcelain", "--", *files).strip())
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(root: Path, *arguments: str) -> str:
    # Without the lock option `status` may rewrite the index under another git command's feet.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
