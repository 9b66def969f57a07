"""Code identity: which files a stage runs, found from what they import.

    entry modules -> our files (six packages of the source root)
                  -> the user's files (the folder of installed hooks, or any folder on the path)
                  -> installed distributions, by name and version

Our own files are followed to our files alone: the lock names the rest.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import Field

from infra.code.digest import digest_of, sha256_of
from infra.code.imports import imports_of
from infra.config import Config
from infra.home import SOURCE_ROOT

PACKAGES = frozenset({"flows", "tasks", "engines", "rewards", "curricula", "infra"})
_OURS = re.compile(rf"({'|'.join(sorted(PACKAGES))})(\.\w+)+")
_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What is found out of our files: several identities may share it, while no file changes."""

    next: dict[Path, list[tuple[Path, Path]] | None] = field(default_factory=dict)
    """what a file leads to"""
    places: dict[str, list[tuple[Path, Path]]] = field(default_factory=dict)
    """of a module"""
    hashes: dict[Path, str] = field(default_factory=dict)


class CodeIdentity(Config):
    """Which code a stage runs. Only `hash` enters the stage's digest."""

    hash: str
    """sha256 over the four tables below"""
    files: dict[str, str]
    """sha256 of our files by their path below the source root"""
    hooks: dict[str, str] = Field(default_factory=dict)
    """the same of the user's own files, by their path below the folder that they are imported
    from, with whatever else lies in their packages"""
    installed: dict[str, str] = Field(default_factory=dict)
    """versions of the distributions that these import"""
    data: dict[str, str] = Field(default_factory=dict)
    """sha256 of the files that the recipe declares for them"""
    version: str
    commit: str = ""
    """of the checkout, as `with_commit` finds it; empty for an installed wheel"""
    dirty: bool = False
    """whether one of `files` differs from the commit"""


def code_identity(
    modules: Sequence[str],
    *,
    hooks: Path | None = None,
    data: Mapping[str, str] | None = None,
    root: Path = SOURCE_ROOT,
    looked_up: LookedUp | None = None,
) -> CodeIdentity:
    """Identity of what importing the modules runs, directly or not.

    `hooks` is the folder of the user's installed files; `data` counts where one of them, or
    another module of the user's, is imported. Imports inside functions count, those for type
    checking only do not; a string that is exactly a module's dotted name counts as well, since
    processes are started with `-m` and a name. A file of ours that only declares settings or
    names parts does not (`infra.code.imports`). Raises InputError for a hook that is not Python.
    """
    looked_up = LookedUp() if looked_up is None else looked_up
    found = _Closure(root, hooks, looked_up)
    found.follow(modules)
    for file in found.ours - looked_up.hashes.keys():
        looked_up.hashes[file] = sha256_of(file)
    files = {f.relative_to(root).as_posix(): looked_up.hashes[f] for f in sorted(found.ours)}
    declared = dict(data or {}) if found.users or found.installed else {}
    users = {name: sha256_of(file) for name, file in sorted(found.users.items())}
    content = {"code": files, "hooks": users, "installed": found.installed, "data": declared}
    return CodeIdentity(
        hash=digest_of(content), files=files, hooks=users, installed=dict(found.installed),
        data=declared, version=importlib.metadata.version("tributary"),
    )  # fmt: skip


def with_commit(identity: CodeIdentity, root: Path = SOURCE_ROOT) -> CodeIdentity:
    """The same, with what git says of it, which takes a moment."""
    commit, dirty = _git_state(root, list(identity.files))
    return identity.model_copy(update={"commit": commit, "dirty": dirty})


@dataclass(slots=True)
class _Closure:
    """Grows by what is followed."""

    root: Path
    hooks: Path | None
    looked_up: LookedUp
    ours: set[Path] = field(default_factory=set[Path])
    users: dict[str, Path] = field(default_factory=dict[str, Path])
    """by the path that they are known by"""
    installed: dict[str, str] = field(default_factory=dict[str, str])
    _seen: set[Path] = field(default_factory=set[Path])

    def follow(self, modules: Sequence[str]) -> None:
        pending = [place for module in modules for place in self._places(module)]
        while pending:
            base, file = pending.pop()
            if file in self._seen:
                continue
            self._seen.add(file)
            if base == self.root:
                if file not in self.looked_up.next:
                    self.looked_up.next[file] = self._next(base, file)
                found = self.looked_up.next[file]
                if found is not None:
                    self.ours.add(file)
                    pending += found
            else:
                self._take(base, file)
                pending += self._next(base, file) or ()

    def _next(self, base: Path, file: Path) -> list[tuple[Path, Path]] | None:
        """What a file leads to; None for one of ours that only declares."""
        imports = imports_of(file, ".".join(file.relative_to(base).parent.parts))
        if base == self.root and imports.only_declares:
            return None
        names = [*imports.names, *filter(self._is_module, imports.strings)]
        if base == self.root:  # what our own files import of others is in the lock
            names = [name for name in names if name.partition(".")[0] in PACKAGES]
        return list(dict.fromkeys(place for name in names for place in self._places(name)))

    def _places(self, module: str) -> Iterator[tuple[Path, Path]]:
        """(folder on the path, file) of each file that importing a dotted name runs: packages on
        the way and the module itself; for the name of an attribute, those of its module."""
        top = module.partition(".")[0]
        if top in PACKAGES:
            known = self.looked_up.places
            if module not in known:
                known[module] = [(self.root, file) for file in files_of(self.root, module)]
            yield from known[module]
        elif self.hooks is not None and _is_in(self.hooks, top):
            yield from ((self.hooks, file) for file in files_of(self.hooks, module))
        elif (folder := _folder_of(top)) is not None:
            yield from ((folder, file) for file in files_of(folder, module))
        elif (version := _version_of(top)) is not None:
            self.installed.setdefault(*version)

    def _is_module(self, text: str) -> bool:
        if _OURS.fullmatch(text):
            return True
        return self.hooks is not None and _is_in(self.hooks, text.partition(".")[0])

    def _take(self, base: Path, file: Path) -> None:
        self.users[file.relative_to(base).as_posix()] = file
        package = base / file.relative_to(base).parts[0]
        if base == self.hooks and package.is_dir():
            for other in package.rglob("*"):
                if other.is_file() and other.suffix not in (".py", ".pyc"):
                    self.users[other.relative_to(base).as_posix()] = other


def files_of(base: Path, module: str) -> Iterator[Path]:
    """The files that importing a dotted name runs: its packages, and the module itself."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        path = base.joinpath(*parts[:depth])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            yield file


def _is_in(base: Path, top: str) -> bool:
    return (base / top).is_dir() or (base / f"{top}.py").is_file()


@cache
def _origin(top: str) -> Path | None:
    """The file or folder of a module that is not the interpreter's own; None if there is none."""
    if top in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return next((Path(place) for place in places if place and Path(place).exists()), None)


@cache
def _folder_of(top: str) -> Path | None:
    """The folder on the path that a module of the user's lies in, unless it is installed."""
    origin = _origin(top)
    if origin is None or _INSTALLED & set(origin.parts):
        return None
    is_package = origin.name == "__init__.py" or origin.is_dir()
    inside = origin.parent if origin.name == "__init__.py" else origin
    return inside.parent if is_package else origin.parent


@cache
def _version_of(top: str) -> tuple[str, str] | None:
    """Name and version of the distribution that a module comes from."""
    if _origin(top) is None:
        return None
    names = _distributions().get(top)
    if not names:
        return None
    return names[0], importlib.metadata.version(names[0])


@cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


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
