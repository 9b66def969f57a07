"""Code identity: which code a stage runs, found from what it names.

    parts -> our definitions (in the six packages of the source root)
          -> the user's files (the folder of installed hooks, or any folder on the path)
          -> installed distributions, by name and version

Our own definitions are followed to ours alone: the lock names the rest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import Field

from infra.code.definitions import ALL, AS_TYPE, EFFECTS, Definition, Module, read_module
from infra.code.digest import digest_of, sha256_of
from infra.code.kept_definitions import keep_definitions, load_kept_definitions
from infra.config import Config
from infra.home import SOURCE_ROOT

PACKAGES = frozenset({"flows", "tasks", "engines", "rewards", "curricula", "infra"})
_OURS = re.compile(rf"({'|'.join(sorted(PACKAGES))})(\.\w+)+")
_INSTALLED = {"site-packages", "dist-packages"}


SETTINGS, CHOICE = "infra.config.Config", "infra.config.Choice"
Unit = tuple[str, str]
"""a module of ours, and a definition in it or a method (`Class.method`)"""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What is found out of our code: several identities may share it, while no file changes."""

    next: dict[Unit, list[Unit]] = field(default_factory=dict)
    """what a definition leads to"""
    modules: dict[str, Module] = field(default_factory=dict)
    files: dict[str, Path | None] = field(default_factory=dict)
    """of a module; None where there is none"""
    found: dict[tuple[str, bool], list[Unit]] = field(default_factory=dict)
    """what a dotted name leads to"""
    identities: dict[tuple[tuple[str, ...], ...], CodeIdentity] = field(default_factory=dict)
    """by parts and settings, where all of them are ours"""


_OF_OURS: list[tuple[object, LookedUp]] = []
"""the state of our files, and what was found out in it"""


def looked_up_in(root: Path) -> LookedUp:
    """Return what is known of the code there: of our own all that this process found out, until a
    file changes."""
    if root != SOURCE_ROOT:
        return LookedUp()
    files = (
        f"{folder}/{name}"
        for package in sorted(PACKAGES)
        for folder, _, names in os.walk(root / package)
        for name in names
        if name.endswith(".py") and name[0] != "."
    )
    state = [(file, (at := os.stat(file)).st_mtime_ns, at.st_size) for file in files]
    if not _OF_OURS or _OF_OURS[0][0] != state:
        _OF_OURS[:] = [(state, LookedUp())]
    return _OF_OURS[0][1]


class CodeIdentity(Config):
    """Which code a stage runs. Only `hash` enters the stage's digest."""

    hash: str
    """sha256 over the four tables below"""
    files: dict[str, str]
    """sha256 of the definitions that count, by our file's path below the source root"""
    hooks: dict[str, str] = Field(default_factory=dict)
    """the same of the user's own files, by their path below the folder that they are imported
    from: all that they define, and the content of whatever else lies in their packages"""
    installed: dict[str, str] = Field(default_factory=dict)
    """versions of the distributions that these import"""
    data: dict[str, str] = Field(default_factory=dict)
    """sha256 of the files that the recipe declares for them"""
    version: str
    commit: str = ""
    """of the checkout, as the job finds it; empty for an installed wheel"""
    dirty: bool = False
    """whether one of `files` differs from the commit"""


def code_identity(
    parts: Sequence[str],
    *,
    settings: Sequence[str] = (),
    hooks: Path | None = None,
    data: Mapping[str, str] | None = None,
    root: Path = SOURCE_ROOT,
    looked_up: LookedUp | None = None,
) -> CodeIdentity:
    """Identity of what the parts run: `module:definition` each, or `module` for all of it.

    A definition of ours counts with all that its code names: helpers, constants, base classes,
    decorators, and what runs when their modules are imported. What a module defines besides does
    not count, nor docstrings, comments and the types of parameters. `settings` are classes
    (`module:Class`) whose values count elsewhere: of them the methods count that this code names.

    Where a name cannot be followed further (a module that is passed on, or named by a string, since
    processes are started with `-m` and a name), the whole module counts. A user's file counts
    whole. `hooks` is the folder of the user's installed files; `data` counts where one of them, or
    another module of the user's, is imported. Raises InputError for a file that is not Python.
    """
    known = looked_up_in(root) if looked_up is None else looked_up
    asked = tuple(parts), tuple(settings)
    if asked in known.identities:
        return known.identities[asked]
    load_kept_definitions()
    found = _Closure(root, hooks, known)
    for part in parts:
        found.reach(part.removesuffix(":").replace(":", "."))
    for name in settings:
        found.reach_methods(name.replace(":", "."))
    found.finish()
    files = found.files()
    declared = dict(data or {}) if found.users or found.installed else {}
    users = {name: _user_digest(file) for name, file in sorted(found.users.items())}
    if looked_up is None:  # who shares it keeps them once
        keep_definitions()
    content = {"code": files, "hooks": users, "installed": found.installed, "data": declared}
    identity = CodeIdentity(
        hash=digest_of(content), files=files, hooks=users, installed=dict(found.installed),
        data=declared, version=importlib.metadata.version("tributary"),
    )  # fmt: skip
    if all(re.split("[.:]", name)[0] in PACKAGES for name in (*parts, *settings)):
        known.identities[asked] = identity
    return identity


@dataclass(slots=True)
class _Closure:
    """Grows by what is reached."""

    root: Path
    hooks: Path | None
    looked_up: LookedUp
    users: dict[str, Path] = field(default_factory=dict[str, Path])
    """by the path that they are known by"""
    installed: dict[str, str] = field(default_factory=dict[str, str])
    _units: set[Unit] = field(default_factory=set[Unit])
    _pending: list[Unit] = field(default_factory=list[Unit])
    _named_attributes: set[str] = field(default_factory=set[str])
    _methods: dict[str, list[Unit]] = field(default_factory=dict[str, list[Unit]])
    """of settings, by name"""

    def reach(self, name: str) -> None:
        """What a dotted name stands for: a definition of ours, or a file of the user's."""
        top = name.partition(".")[0]
        if top in PACKAGES:
            self._pending += self._found(name)
        elif self.hooks is not None and _is_in(self.hooks, top):
            self._take(self.hooks, name)
        elif (folder := _folder_of(top)) is not None:
            self._take(folder, name)
        elif (version := _version_of(top)) is not None:
            self.installed.setdefault(*version)

    def reach_methods(self, name: str) -> None:
        """Reach the methods of a class of settings, and of its bases, that reached code names."""
        if name.partition(".")[0] not in PACKAGES:
            return self.reach(name)
        for module, found in self._found(name):
            content = self._module(module)
            for method in content.methods.get(found, ()):
                unit = (module, f"{found}.{method}")
                self._methods.setdefault(method, []).append(unit)
                if method in self._named_attributes or method.startswith("__"):
                    self._pending.append(unit)
            for base in content.bases.get(found, ()):
                if target := self._target(content, module, base):
                    self.reach_methods(target)
        return None

    def finish(self) -> None:
        while self._pending:
            unit = self._pending.pop()
            if unit in self._units:
                continue
            self._units.add(unit)
            if unit not in self.looked_up.next:
                self.looked_up.next[unit] = list(dict.fromkeys(self._next(unit)))
            self._pending += self.looked_up.next[unit]
            for name in self._definition(unit).attributes - self._named_attributes:
                self._named_attributes.add(name)
                self._pending += self._methods.get(name, ())

    def files(self) -> dict[str, str]:
        """Return what counts in each file of ours, as one hash."""
        found: dict[str, list[str]] = {}
        for module, name in self._units:
            if digest := self._definition((module, name)).digest:
                found.setdefault(module, []).append(f"{name} {digest}")
        hashes = {
            str(self._file(module)): hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
            for module, lines in found.items()
        }
        return {Path(f).relative_to(self.root).as_posix(): hashes[f] for f in sorted(hashes)}

    def _found(self, name: str, *, as_type: bool = False) -> list[Unit]:
        """The definition of ours that a dotted name leads to, through whatever imports it. As the
        type of a field a choice leads nowhere: the spec says which one counts."""
        key = name, as_type
        if key not in self.looked_up.found:
            self.looked_up.found[key] = list(self._find(name, as_type))
        return self.looked_up.found[key]

    def _find(self, name: str, as_type: bool) -> Iterator[Unit]:
        parts = name.split(".")
        depths = range(len(parts), 0, -1)
        depth = next((n for n in depths if self._file(".".join(parts[:n]))), 0)
        if not depth:
            return
        module, rest = ".".join(parts[:depth]), parts[depth:]
        content = self._module(module)
        yield module, EFFECTS
        if not rest:
            yield module, ALL
        elif rest[0] in content:
            if as_type and content.is_type(rest[0]):
                yield module, rest[0] + AS_TYPE
            elif not (as_type and self._is(f"{module}.{rest[0]}", CHOICE)):
                yield module, rest[0]
        elif rest[0] in content.bindings:
            target = ".".join([content.bindings[rest[0]], *rest[1:]])
            yield from self._found(target, as_type=as_type)
        elif not content.is_package:
            yield module, ALL

    def _next(self, unit: Unit) -> Iterator[Unit]:
        """Yield what a definition leads to: all that its code names, and what runs when the modules
        are imported in which these lie."""
        module, name = unit
        content, definition = self._module(module), self._definition(unit)
        if name == EFFECTS:
            parts = module.split(".")
            packages = (".".join(parts[:depth]) for depth in range(1, len(parts)))
            yield from ((package, EFFECTS) for package in packages if self._file(package))
            for imported in content.bindings.values():
                yield from ((found, EFFECTS) for found, _ in self._found(imported))
        else:
            yield module, EFFECTS
        is_type = content.is_type(name)
        for used in definition.names:
            if target := self._target(content, module, used):
                yield from self._found(target, as_type=is_type)
        holds_settings = name in content.bases and self._is(f"{module}.{name}", SETTINGS)
        for used in definition.declared:
            target = self._target(content, module, used)
            if target and (holds_settings or not self._is(target, SETTINGS)):
                yield from self._found(target, as_type=True)
        for imported in definition.imports:
            yield from self._found(imported)
        for text in filter(_OURS.fullmatch, definition.strings):
            if self._file(text):
                yield text, ALL

    def _target(self, content: Module, module: str, used: str) -> str:
        """Return what a name that a module's code uses stands for; empty if it is none of ours."""
        top, dot, rest = used.partition(".")
        if top in content:
            return f"{module}.{top}"
        bound = content.bindings.get(top, "")
        return f"{bound}{dot}{rest}" if bound.partition(".")[0] in PACKAGES else ""

    def _is(self, name: str, ancestor: str) -> bool:
        """Return whether a dotted name is a class of ours below another."""
        if name == ancestor:
            return True
        for module, found in self._found(name):
            content = self._module(module)
            targets = [self._target(content, module, base) for base in content.bases.get(found, ())]
            if any(self._is(target, ancestor) for target in targets if target):
                return True
        return False

    def _definition(self, unit: Unit) -> Definition:
        module, name = unit
        return self._module(module).definition(name)

    def _module(self, name: str) -> Module:
        if name not in self.looked_up.modules:
            file = self._file(name)
            assert file is not None, name
            self.looked_up.modules[name] = read_module(file, name)
        return self.looked_up.modules[name]

    def _file(self, module: str) -> Path | None:
        if module not in self.looked_up.files:
            path = self.root.joinpath(*module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            self.looked_up.files[module] = file if file.is_file() else None
        return self.looked_up.files[module]

    def _take(self, base: Path, module: str) -> None:
        """A file of the user's counts whole, and so does what else lies in its package."""
        for file in files_of(base, module):
            known = file.relative_to(base).as_posix()
            if known in self.users:
                continue
            self.users[known] = file
            package = base / file.relative_to(base).parts[0]
            if base == self.hooks and package.is_dir():
                for other in package.rglob("*"):
                    if other.is_file() and other.suffix not in (".py", ".pyc"):
                        self.users[other.relative_to(base).as_posix()] = other
            whole = read_module(file, _module_name(base, file)).definition(ALL)
            for name in sorted(whole.imports | set(filter(self._is_module, whole.strings))):
                self.reach(name)

    def _is_module(self, text: str) -> bool:
        if _OURS.fullmatch(text):
            return True
        return self.hooks is not None and _is_in(self.hooks, text.partition(".")[0])


def _module_name(base: Path, file: Path) -> str:
    parts = file.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _user_digest(file: Path) -> str:
    if file.suffix != ".py":
        return sha256_of(file)
    return read_module(file, file.stem).definition(ALL).digest


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
