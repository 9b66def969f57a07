"""One small wrong change at a time: every mutant of a source file.

| family | changes |
|---|---|
| operator | + -, * /, //, **, unary minus, and/or, not |
| comparison | < <= > >= == != is in, each to its neighbour and its opposite |
| constant | numbers by one, zero and one exchanged, booleans, names in quotes |
| bound | min, max, clamp, minimum, maximum, clamp_min taken away; min and max exchanged |
| keyword | an argument given by name left out; two given by position exchanged |
| return | what a function returns becomes None; a branch is always or never taken |
| statement | an assignment, an in-place change or a call in a line of its own is left out |

Docstrings, annotations, imports and sentences for people are left alone: they change no result.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    line: int
    family: str
    change: str
    """before -> after, in one line"""
    number: int
    """among the mutants of its file"""

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.family}: {self.change}"


Swap = tuple[str, ast.AST]
"""family and what stands in a node's place"""

_BINARY: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.MatMult: (ast.Mult,),
    ast.LShift: (ast.Add,),
}
_COMPARE: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BOUNDS = {"clamp", "clamp_", "clamp_min", "clamp_max"}
_EXTREMES = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min",
             "amin": "amax", "amax": "amin"}  # fmt: skip


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """All of them, in the order of the file."""
    for number, (node, _, (family, other)) in enumerate(_changes(ast.parse(source))):
        change = f"{_line(node)} -> {_line(other)}"
        yield Mutant(file, getattr(node, "lineno", 0), family, change, number)


def changed_source(source: str, number: int) -> str:
    """The whole file with this one change."""
    tree = ast.parse(source)
    node, parent, (_, other) = next(islice(_changes(tree), number, None))
    _replace(parent, node, other)
    return ast.unparse(ast.fix_missing_locations(tree))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, Swap]]:
    """(node, parent, what may stand in its place)."""
    for node, parent in _spots(tree):
        for swap in _swaps(node):
            yield node, parent, swap


def _spots(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(node, parent) of everything that a mutation may change."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            yield child, tree
            yield from _spots(child)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.Assign):
        # Names of types: `Mean = Literal[...]`, `Losses = Callable[...]`.
        return isinstance(node.value, ast.Subscript) and ast.unparse(node.value).startswith(
            ("Literal[", "Callable[", "list[")
        )
    return False


def _swaps(node: ast.AST) -> Iterator[Swap]:
    match node:
        case ast.BinOp(op=op):
            for kind in _BINARY.get(type(op), ()):
                yield "operator", _changed(node, op=kind())
        case ast.AugAssign(op=op):
            for kind in _BINARY.get(type(op), ()):
                yield "operator", _changed(node, op=kind())
            yield "statement", ast.Pass()
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield "operator", operand
        case ast.BoolOp(op=op):
            yield "operator", _changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.Compare(ops=[op]):
            for kind in _COMPARE[type(op)]:
                yield "comparison", _changed(node, ops=[kind()])
        case ast.Constant(value=value):
            yield from (("constant", ast.Constant(other)) for other in _constants(value))
        case ast.Call():
            yield from _calls(node)
        case ast.Return(value=value) if value is not None and ast.unparse(value) != "None":
            yield "return", ast.Return(ast.Constant(None))
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
            for taken in (True, False):
                yield "return", _changed(node, test=ast.Constant(taken))
        case ast.Expr(value=ast.Call()):
            yield "statement", ast.Pass()
        case ast.Continue() | ast.Break():
            yield "statement", ast.Pass()
        case _:
            return


def _constants(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        if value == 1:
            yield value - 1
        elif value:
            yield 0 if isinstance(value, int) else value * 2
    elif isinstance(value, str) and value and " " not in value:
        yield value + "X"


def _calls(node: ast.Call) -> Iterator[Swap]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _BOUNDS and isinstance(function, ast.Attribute):
        yield "bound", function.value
    if name in _EXTREMES:
        other = deepcopy(function)
        setattr(other, "attr" if isinstance(other, ast.Attribute) else "id", _EXTREMES[name])
        yield "bound", _changed(node, func=other)
        if len(node.args) == 2:
            yield "bound", node.args[0]
            yield "bound", node.args[1]
    for place in range(len(node.keywords)):
        rest = [k for i, k in enumerate(node.keywords) if i != place]
        yield "keyword", _changed(node, keywords=rest)
    plain = not any(isinstance(a, ast.Starred | ast.Constant) for a in node.args)
    if plain and len(node.args) >= 2 and name not in _EXTREMES:
        yield "keyword", _changed(node, args=[node.args[1], node.args[0], *node.args[2:]])
    if isinstance(function, ast.Attribute) and name in ("detach", "clone", "abs", "sqrt", "exp"):
        yield "bound", function.value


def _changed(node: ast.AST, **fields: Any) -> ast.AST:
    copied = deepcopy(node)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def _replace(parent: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for name, value in ast.iter_fields(parent):
        if value is old:
            setattr(parent, name, new)
        elif isinstance(value, list):
            for place, child in enumerate(value):
                if child is old:
                    value[place] = new


def _line(node: ast.AST) -> str:
    if isinstance(node, ast.If):
        return f"if {_line(node.test)}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else text[:87] + "..."
