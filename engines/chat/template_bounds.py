"""Bounds on what a chat template does: it is a program that comes with a model.

Turns of loops, calls and filters count, and what they make has a largest size, alone and together.
A template that goes beyond is refused, where it would else keep a process or fill its memory.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import Environment, TemplateError, nodes, pass_context, pass_environment
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

MOST_STEPS = 5_000_000
"""turns of loops, and calls, of one rendering"""
MOST_SECONDS = 20.0
"""of a processor's time, for one rendering"""
LARGEST = 16 << 20
"""characters or items of one value, and characters of what is rendered"""
MOST_MADE = 512 << 20
"""characters or items of all values together that operators, calls and filters make"""
CALL_STEPS = 25
"""what a call or a filter costs, in turns of a loop"""
_LARGEST_NUMBER = 1 << 20
"""that a call is given, such as a width"""
_LARGEST_POWER = 64
_LOOK_STEPS = 100
_MOST_PARTS = 128
"""texts that one expression joins"""
_SHORT = 1024
"""characters of a text that is not counted among what is made"""
_ITEM = 16
"""characters that an item of a list counts for"""
_JOINS = (nodes.Add, nodes.Concat)
_SHRINKING = frozenset((
    "strip", "lstrip", "rstrip", "startswith", "endswith", "removeprefix", "removesuffix", "lower",
    "upper", "find",
))  # fmt: skip
"""methods of texts that make nothing longer than the text"""
HARMLESS_FILTERS = frozenset((
    "trim", "length", "count", "lower", "upper", "first", "last", "default", "d", "int", "float",
))  # fmt: skip
"""filters that make nothing longer than what they are given"""
_OF_JINJA = {"_loop_vars", "_block_vars"}
"""what each call is given besides its own"""
TURN, MADE = "_turn", "_made"
"""the filters that `bound` puts in"""
LEFT_OUT = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
"""filters that a template does not have: one call may take minutes or gigabytes, or gives another
text each time, and no model's template needs them"""
_LONG = 1 << 16
"""characters or items of a value, with which a call is looked at by the clock at once"""
_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class _Spent:
    """By one rendering."""

    steps: int = 0
    look_at: int = _LOOK_STEPS
    """the number of steps at which the time is looked at"""
    made: int = 0
    began: float | None = None
    """when the time was first looked at: short renderings never ask for it, which costs as much as
    they do"""


_spent: ContextVar[_Spent] = ContextVar("spent")


def begin() -> None:
    """Count anew, for one rendering."""
    _spent.set(_Spent())


def bound(template: nodes.Template) -> None:
    """Have turns of loops counted, and measured what operators and literals make. What is only
    written out, as most of what a template joins is, is measured as it is written."""
    _Bounding().visit(template)


class _Bounding(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(None), TURN)))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        for at, each in enumerate(node.nodes):
            if isinstance(each, _JOINS):
                self._visit_joined(each)
            else:
                node.nodes[at] = self.visit(each)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        return self._joined(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return self._joined(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE) if node.items else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE) if node.items else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, MADE) if node.ctx == "load" and node.items else node

    def _joined(self, node: nodes.Add | nodes.Concat) -> nodes.Node:
        self._visit_joined(node)
        return _filtered(node, MADE)

    def _visit_joined(self, node: nodes.Expr) -> None:
        """Visit what is joined. Parts of one expression are measured together, so there is a limit
        to how many it may have."""
        waiting, parts = [node], 0
        while waiting:
            each = waiting.pop()
            for name, value in each.iter_fields():
                inner = cast("list[Any]", value) if isinstance(value, list) else [value]
                parts += len(inner)
                waiting += [part for part in inner if isinstance(part, _JOINS)]
                visited = [
                    self.visit(part)
                    if isinstance(part, nodes.Node) and not isinstance(part, _JOINS)
                    else part
                    for part in inner
                ]
                setattr(each, name, visited if isinstance(value, list) else visited[0])
        if parts > _MOST_PARTS:
            raise TemplateError(f"one expression joins more than {_MOST_PARTS} texts")


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def bounded_filter(name: str, made_by: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, which is asked only for what is not too large."""
    position = 1 if hasattr(made_by, "jinja_pass_arg") else 0

    @functools.wraps(made_by)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        step(CALL_STEPS)
        value, *more = args[position:] or (None,)
        if isinstance(value, Iterator):
            args = (*args[:position], _measured(cast("Iterator[Any]", value)), *more)
        expect(name, value, (*more, *kwargs.values()))
        return made(made_by(*args, **kwargs))

    return bounded


@pass_context  # so that it is not evaluated when the template is compiled
def turn(context: Context, _: None) -> None:
    """One more turn of a loop."""
    del context
    step(1)


@pass_environment
def summed(
    environment: Environment, items: Iterable[Any], attribute: Any = None, start: Any = 0
) -> Any:
    """Jinja's filter `sum`, which makes a new list with each that it adds."""
    found = make_attrgetter(environment, attribute) if attribute is not None else None
    for item in items:
        step(1)
        start = start + (item if found is None else found(item))
        if isinstance(start, str | list | tuple):  # what is in it was measured when it was made
            _count(_ITEM * len(cast("list[Any]", start)))
    return start


def _measured(items: Iterator[Any]) -> Iterator[Any]:
    """What one filter makes as another asks for it."""
    for item in items:
        step(1)
        yield made(item)


def step(count: int) -> None:
    spent = _spent.get()
    spent.steps += count
    if spent.steps < spent.look_at:
        return
    spent.look_at = spent.steps + _LOOK_STEPS
    if spent.steps > MOST_STEPS:
        raise TemplateError(f"it takes more than {MOST_STEPS} turns of loops")
    now = time.thread_time()
    spent.began = now if spent.began is None else spent.began
    if now - spent.began > MOST_SECONDS:
        raise TemplateError(f"it takes more than {MOST_SECONDS:g} s of a processor")


def made(value: Any) -> Any:
    """The value, if it is not too large, and all that were made neither."""
    if isinstance(value, str):
        size = len(value)
        if size <= _SHORT:
            return value
    elif isinstance(value, list | tuple | dict):
        size = _size(value)
    else:
        return value
    _count(size)
    return value


def _count(size: int) -> None:
    """A value of this size was made."""
    _require(size)
    spent = _spent.get()
    spent.made += size
    if spent.made > MOST_MADE:
        raise TemplateError(f"it makes texts and lists of more than {MOST_MADE} characters")


def _size(value: object) -> int:
    """Characters, of any depth; an item counts as several. It stops at what is too large."""
    if isinstance(value, str):
        return len(value)
    size, waiting = 0, [cast("Any", value)]
    while waiting and size <= LARGEST:
        each = waiting.pop()
        items: Iterable[Any] = each.values() if isinstance(each, dict) else each
        for item in items:
            size += _ITEM + (len(item) if isinstance(item, str) else 0)
            if isinstance(item, list | tuple | dict) and item:
                waiting.append(item)
    return size


def shrunk(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a method of a text gives that makes nothing longer; NotImplemented for any other."""
    if type(method) is not BuiltinMethodType or type(method.__self__) is not str:
        return NotImplemented
    if method.__name__ not in _SHRINKING or not kwargs.keys() <= _OF_JINJA:
        return NotImplemented
    return made(method(*args))


def expect(name: str, value: Any, given: tuple[Any, ...]) -> None:
    """Raises TemplateError before a method or filter of this name makes what is too large of a
    value and what it is given."""
    if name == "encode":
        raise TemplateError("it encodes a text, whose bytes no template can write")
    if isinstance(value, str | list | tuple) and len(cast("list[Any]", value)) > _LONG:
        _look_from_now()
    for each in given:
        if isinstance(each, str):
            _require(len(each))
        elif isinstance(each, int) and abs(each) > _LARGEST_NUMBER:
            raise TemplateError(f"it gives a call the number {each:.3g}, above {_LARGEST_NUMBER}")
    if name == "join" and isinstance(value, str) and given:
        value, given = given[0], (value,)  # a method: the text stands between
    if name == "join" and isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        between = len(given[0]) if given and isinstance(given[0], str) else 0
        _require(_size(items) + between * len(items))
    if isinstance(value, str) and (size := _SIZES.get(name)):
        _require(size(value, *given))


def _look_from_now() -> None:
    """Count the time of the call that follows, and look at it before the next one."""
    spent = _spent.get()
    spent.look_at = 0
    spent.began = time.thread_time() if spent.began is None else spent.began


def operands(operator: str, left: Any, right: Any) -> None:
    """Raises TemplateError before a result that is too large is made."""
    if operator == "**" and isinstance(right, int | float) and abs(right) > _LARGEST_POWER:
        raise TemplateError(f"it raises a number to a power above {_LARGEST_POWER}")
    if operator == "%" and isinstance(left, str):
        _require(_formatted(left, *(right if isinstance(right, tuple) else (right,))))  # pyright: ignore[reportUnknownArgumentType]
    if operator != "*":
        return
    for text, times in ((left, right), (right, left)):
        if isinstance(text, str | list | tuple) and isinstance(times, int):
            _require(_size(text) * times)
        elif isinstance(text, int) and abs(text) >> 4096:
            raise TemplateError("it multiplies numbers of more than 4096 bits")


def _replaced(text: str, old: object = "", new: object = "", *_: object) -> int:
    return len(text) + text.count(str(old)) * len(str(new))


def _indented(text: str, width: object = 4, *_: object) -> int:
    each = len(width) if isinstance(width, str) else int(cast("int", width))
    return len(text) + (text.count("\n") + 1) * each


def _expanded(text: str, size: int = 8) -> int:
    return len(text) + text.count("\t") * size


def _formatted(text: str, *given: object) -> int:
    """Each field is at most as long as the longest thing that it is given, or as its width."""
    fields = text.count("%") + text.count("{")
    widths = [int(found) for found in _NUMBER.findall(text)] if fields else []
    numbers = [each for each in given if isinstance(each, int)]
    longest = max([0, *widths, *numbers, *(len(e) for e in given if isinstance(e, str))])
    return len(text) + fields * longest


def _translated(text: str, table: object = None, *_: object) -> int:
    values = cast("dict[Any, Any]", table).values() if isinstance(table, dict) else ()
    return len(text) * max([1, *(len(v) for v in values if isinstance(v, str))])


_SIZES: dict[str, Callable[..., int]] = {
    "replace": _replaced,
    "indent": _indented,
    "expandtabs": _expanded,
    "format": _formatted,
    "translate": _translated,
}
"""at most how long the result is, by the name of a method or a filter"""


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
