"""Bounds on what a chat template does: it is a program that comes with a model.

Turns of loops and calls count, and texts and lists that it makes have a largest size. A template
that goes beyond is refused, where it would else keep a process or fill its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.visitor import NodeTransformer

MOST_STEPS = 5_000_000
"""turns of loops, and calls, of one rendering"""
LARGEST = 16 << 20
"""characters or items of one value, and characters of what is rendered"""
_LARGEST_NUMBER = 1 << 20
"""that a call is given, such as a width"""
_LARGEST_POWER = 64
COUNTED, MADE = "_counted", "_made"
"""the filters that `bound` puts in"""

_steps: ContextVar[int] = ContextVar("steps", default=0)


def begin() -> None:
    """Count anew, for one rendering."""
    _steps.set(0)


def bound(template: nodes.Template) -> None:
    """Have loops counted, and texts that are joined measured."""
    _Bounding().visit(template)


class _Bounding(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(cast("nodes.Expr", node.iter), COUNTED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def counted(items: Iterable[Any]) -> Iterable[Any]:
    if isinstance(items, Sized):
        step(len(items))
        return items
    return _counted_one_by_one(items)


def _counted_one_by_one(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        step(1)
        yield item


def step(count: int) -> None:
    done = _steps.get() + count
    if done > MOST_STEPS:
        raise TemplateError(f"it takes more than {MOST_STEPS} turns of loops")
    _steps.set(done)


def made(value: Any) -> Any:
    """The value, if it is not too large."""
    if isinstance(value, str | list | tuple | dict):
        _require(len(value))  # pyright: ignore[reportUnknownArgumentType]
    return value


def given(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
            raise TemplateError(f"it gives a call the number {value:.3g}, above {_LARGEST_NUMBER}")


def operands(operator: str, left: Any, right: Any) -> None:
    """Raises TemplateError before a result that is too large is made."""
    if operator == "**" and isinstance(right, int | float) and abs(right) > _LARGEST_POWER:
        raise TemplateError(f"it raises a number to a power above {_LARGEST_POWER}")
    if operator != "*":
        return
    for text, times in ((left, right), (right, left)):
        if isinstance(text, str | list | tuple) and isinstance(times, int):
            _require(len(text) * times)  # pyright: ignore[reportUnknownArgumentType]


def _require(size: int) -> None:
    if size > LARGEST:
        raise TemplateError(f"it makes a text or a list of more than {LARGEST} characters or items")


def joined(pieces: Iterable[str]) -> str:
    """What is rendered, while it is not too large."""
    kept: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        _require(size)
        kept.append(piece)
    return "".join(kept)
