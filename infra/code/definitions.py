"""The definitions of a Python file, read from its text: nothing is imported.

A definition is what one top-level name stands for: a function, a class or a constant. Its digest
covers its syntax tree without docstrings, comments, line breaks and the types of parameters, which
compute nothing.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.errors import InputError

_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of all threads' trees as one: mixed, they raise SystemError"""
_READING = threading.RLock()
"""stages ask in threads of their own, and a module that is read halfway would give other digests"""
_TRIES = 10
"""a library parses in other threads too (pydantic, as a module with settings is imported)"""
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PART = re.compile(rf"{_DOTTED.pattern}:{_DOTTED.pattern}")
_VALIDATORS = {"model_validator", "field_validator", "classmethod"}
_IN_OTHER_WORDS = {"parts", "needs", "sources"}
"""properties of settings that repeat what their fields say"""
_TYPES = {"Annotated", "Callable", "Literal", "Mapping", "Sequence", "Union"} | {
    *("dict", "list", "tuple", "type")
}
_RUNS_NOTHING = {
    *("asynccontextmanager", "cache", "contextmanager", "dataclass", "final", "lru_cache"),
    *("overload", "runtime_checkable", "total_ordering"),
}
"""decorators that keep no record of what they decorate"""


@dataclass(frozen=True, slots=True)
class Definition:
    """What one definition, or all statements of a module that are none, refers to."""

    digest: str
    """sha256 of its syntax tree; empty if it has none"""
    names: frozenset[str] = frozenset()
    """dotted names that its code uses, as they are bound in its module"""
    declared: frozenset[str] = frozenset()
    """dotted names in its annotations"""
    imports: frozenset[str] = frozenset()
    """dotted names that it imports itself"""
    strings: frozenset[str] = frozenset()
    """strings of the form of a dotted name: processes are started with `-m` and a name"""
    attributes: frozenset[str] = frozenset()
    """names of attributes that its code reads or sets, of whatever object"""


@dataclass(slots=True)
class Module:
    """One file. A definition is read when it is asked for: most of a program is not."""

    package: str
    """that its relative imports start from"""
    is_package: bool
    names: set[str] = field(default_factory=set[str])
    """of its definitions, and methods as `Class.method`"""
    types: set[str] = field(default_factory=set[str])
    """names that stand for a type that is put together from others"""
    bindings: dict[str, str] = field(default_factory=dict[str, str])
    """dotted names that its imports bind, by the name that they are bound to"""
    bases: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """by class: dotted names, as they are bound here"""
    methods: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """by class: without the validators, which refuse or return what they got"""
    read: dict[str, Definition] = field(default_factory=dict[str, Definition])
    """what was asked for so far"""
    source: bytes = b""
    _statements: dict[str, list[ast.stmt]] = field(default_factory=dict[str, list[ast.stmt]])
    """empty until a definition is read"""

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def definition(self, name: str) -> Definition:
        """The definition of a name or method (`Class.method`), or of `ALL` or `EFFECTS`."""
        if name not in self.read:
            with _READING:
                own = name.removesuffix(AS_TYPE)
                if not self._statements:
                    self.parse()
                found = _definition(self._statements.get(own, ()), self.package)
                self.read[name] = found if name == own else replace(found, digest="")
        return self.read[name]

    def is_type(self, name: str) -> bool:
        """Return whether a name stands for a type that is put together from others."""
        return name.removesuffix(AS_TYPE) in self.types

    def parse(self) -> None:
        """Find out what the file defines."""
        tree, self._statements = _tree(self.source), {}
        for statement in tree.body:
            self._add(ALL, statement)
        for statement in _run_when_imported(tree.body):
            self.bindings |= dict(_bound(statement, self.package))
            own = _names_bound(statement)
            for name in own:
                self._add(name, statement)
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            if _is_recorded(statement) or (not own and not is_import):
                self._add(EFFECTS, statement)
            if isinstance(statement, ast.ClassDef):
                self.bases[statement.name] = tuple(filter(None, map(_dotted, statement.bases)))
                methods = list(_methods(statement))
                self.methods[statement.name] = [method.name for method in methods]
                for method in methods:
                    self._add(f"{statement.name}.{method.name}", method)

    def _add(self, name: str, statement: ast.stmt) -> None:
        self.names.add(name)
        self._statements.setdefault(name, []).append(statement)
        if name != ALL and _is_type(statement):
            self.types.add(name)


ALL, EFFECTS = "*", "*effects*"
"""in place of a definition's name: all of a file, with what it does when it is started as a
program; and what runs when it is imported: calls, loops, and functions whose decorator may keep a
record of them"""
AS_TYPE = "?"
"""after the name of a type that is only declared: it leads to what it is made of, and computes
nothing"""


KNOWN: dict[str, Module] = {}
"""files that were read, by their package and what they hold: a run asks for the identity of each of
its stages, and reading them takes seconds"""


def read_module(file: Path, name: str) -> Module:
    """The module of that dotted name. Raises InputError for a file that is not Python."""
    source, is_package = file.read_bytes(), file.name == "__init__.py"
    package = name if is_package else name.rpartition(".")[0]
    key = f"{package} {is_package:d} {hashlib.sha256(source).hexdigest()}"
    if (known := KNOWN.get(key)) is not None:
        known.source = source
        return known
    module = Module(package, is_package, source=source)
    try:
        module.parse()
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{file} is not Python: {error}") from error
    KNOWN[key] = module
    return module


def _tree(source: bytes) -> ast.Module:
    with _PARSING:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)


def _run_when_imported(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                yield from orelse
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                pass
            case _:
                yield statement


def _bound(statement: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """(name, dotted name) of what a statement's imports bind in the module itself."""
    match statement:
        case ast.Import(names=names):
            for alias in names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        case ast.ImportFrom(names=names):
            base = _base(statement, package)
            yield from ((alias.asname or alias.name, f"{base}.{alias.name}") for alias in names)
        case ast.If() | ast.Try() | ast.With():
            for child in ast.iter_child_nodes(statement):
                yield from _bound(child, package)
        case ast.ExceptHandler(body=body):
            for child in body:
                yield from _bound(child, package)
        case _:
            pass


def _base(statement: ast.ImportFrom, package: str) -> str:
    """The module that names are imported from, also by a relative import."""
    parts = package.split(".") if package else []
    above = parts[: len(parts) - statement.level + 1] if statement.level else []
    return ".".join([*above, *filter(None, [statement.module])])


def _names_bound(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return _targets(targets)
        case ast.AnnAssign(target=target):
            return _targets([target])
        case _:
            return []


def _targets(targets: Iterable[ast.expr]) -> list[str]:
    """Names that are assigned; none where something else is, as `table[key] = ...`."""
    names: list[str] = []
    for target in targets:
        match target:
            case ast.Name(id=name):
                names.append(name)
            case ast.Tuple(elts=inner) | ast.List(elts=inner):
                names += _targets(inner)
            case _:
                return []
    return names


def _is_recorded(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    names = [_dotted(d.func if isinstance(d, ast.Call) else d) for d in statement.decorator_list]
    return any(name.rpartition(".")[2] not in _RUNS_NOTHING for name in names)


def _is_type(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(value=ast.Subscript(value=ast.Name(id=name))):
            return name in _TYPES
        case ast.Assign(value=ast.BinOp(op=ast.BitOr(), left=left)):
            return isinstance(left, ast.Name | ast.BinOp) and _dotted(left).upper() != _dotted(left)
        case _:
            return False


def _methods(statement: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for inner in statement.body:
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = [
            _dotted(d.func if isinstance(d, ast.Call) else d) for d in inner.decorator_list
        ]
        is_validator = bool(decorators) and set(decorators) <= _VALIDATORS
        if inner.name not in _IN_OTHER_WORDS and not is_validator:
            yield inner


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes; empty for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _definition(body: Iterable[ast.AST], package: str) -> Definition:
    reading = _Reading(package)
    for node in body:
        reading.read(node)
    return reading.done()


@dataclass(slots=True)
class _Reading:
    """Grows by what is read."""

    package: str
    text: list[str] = field(default_factory=list[str])
    names: set[str] = field(default_factory=set[str])
    declared: set[str] = field(default_factory=set[str])
    imports: set[str] = field(default_factory=set[str])
    strings: set[str] = field(default_factory=set[str])
    attributes: set[str] = field(default_factory=set[str])

    def done(self) -> Definition:
        digest = hashlib.sha256("\n".join(self.text).encode()).hexdigest() if self.text else ""
        return Definition(
            digest, frozenset(self.names), frozenset(self.declared), frozenset(self.imports),
            frozenset(self.strings), frozenset(self.attributes),
        )  # fmt: skip

    def read(self, node: ast.AST, *, in_class: bool = False) -> None:
        if isinstance(node, ast.Name):
            self.names.add(node.id)
            self.text += ("(Name", repr(node.id), ")")
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
                self.strings.add(node.value)
            self.text += ("(Constant", repr(node.value), ")")
            return
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                self._all(orelse)
                return
            case ast.Assign(value=ast.Dict() as table) | ast.AnnAssign(value=ast.Dict() as table):
                if _is_table_of_parts(table):
                    return  # a spec names those that it uses
            case ast.Import(names=names):
                self.imports |= {alias.name for alias in names}
            case ast.ImportFrom(names=names):
                base = _base(node, self.package)
                self.imports |= {f"{base}.{alias.name}" for alias in names}
            case ast.Attribute() if name := _dotted(node):
                self.names.add(name)
                self.attributes.update(name.split(".")[1:])
                self.text.append(name)
                return
            case ast.Attribute(attr=name):
                self.attributes.add(name)
            case _:
                pass
        self.text.append(f"({type(node).__name__}")
        for name in node._fields:
            if name in ("ctx", "type_comment", "kind"):
                continue
            value = getattr(node, name)
            if name in ("annotation", "returns") and value is not None:
                self._annotation(value, counts=in_class)
            elif isinstance(value, list):
                self._all(value, in_class=isinstance(node, ast.ClassDef))
            elif isinstance(value, ast.AST):
                self.read(value)
            else:
                self.text.append(repr(value))
        self.text.append(")")

    def _all(self, nodes: Iterable[object], *, in_class: bool = False) -> None:
        self.text.append("[")
        for node in nodes:
            if isinstance(node, ast.AST):
                self.read(node, in_class=in_class)
            else:
                self.text.append(repr(node))
        self.text.append("]")

    def _annotation(self, node: ast.expr, *, counts: bool) -> None:
        """A field's type decides how a value is read; a parameter's decides nothing."""
        read = _definition([node], self.package)
        self.declared |= read.names | read.declared
        if counts:
            self.text.append(read.digest)


def _is_table_of_parts(table: ast.Dict) -> bool:
    return bool(table.values) and all(
        isinstance(value, ast.Constant)
        and isinstance(value.value, str)
        and _PART.fullmatch(value.value)
        for value in table.values
    )
