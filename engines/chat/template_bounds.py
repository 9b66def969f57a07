"""Bounds on what a chat template does: it is a program that comes with a model.

Turns of loops, calls and filters count, and what they make has a largest size, alone and together.
A template that goes beyond is refused, where it would else keep a process or fill its memory.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import (
    Environment,
    TemplateError,
    nodes,
    pass_context,
    pass_environment,
    pass_eval_context,
)
from jinja2.filters import do_trim, make_attrgetter, sync_do_join
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from engines.chat.template_sizes import (
    ITEM,
    LONGEST_SOUGHT,
    expect,
    expect_joined,
    expect_method,
    require,
    size_of,
)

MOST_STEPS = 5_000_000
"""turns of loops, and calls, of one rendering, or of all that find out how a template writes"""
MOST_SECONDS = 20.0
"""of a processor's time, for one rendering"""
MOST_MADE = 512 << 20
"""characters or items of all values together that operators, calls and filters make"""
CALL_STEPS = 25
"""what a call or a filter costs, in turns of a loop"""
_LOOK_STEPS = 100
_MOST_PARTS = 128
"""texts that one expression joins"""
_SHORT = 1024
"""characters of a text that is not counted among what is made"""
_JOINS = (nodes.Add, nodes.Concat)
_SHRINKING = frozenset((
    "strip", "lstrip", "rstrip", "startswith", "endswith", "removeprefix", "removesuffix", "lower",
    "upper", "find",
))  # fmt: skip
"""methods of texts that make nothing longer than the text"""
HARMLESS_FILTERS = frozenset((
    "length", "count", "lower", "upper", "first", "last", "default", "d", "float",
))  # fmt: skip
"""filters that make nothing longer than what they are given"""
LONG_TESTS = (
    "in", "lower", "upper", "divisibleby", "==", "eq", "equalto", "!=", "ne", ">", "gt",
    "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le",
)  # fmt: skip
"""tests that take as long as what they look at"""
_OF_JINJA = {"_loop_vars", "_block_vars"}
"""what each call is given besides its own"""
TURN, MADE = "_turn", "_made"
"""the filters that `bound` puts in"""
LEFT_OUT = ("pprint", "random", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr")
"""filters that a template does not have: one call may take minutes or gigabytes, or gives another
text each time, and no model's template needs them"""
_LONG = 1 << 16
"""characters or items of a value, with which a call is looked at by the clock at once"""
_is_together: ContextVar[bool] = ContextVar("is_together", default=False)


@dataclass(slots=True)
class _Spent:
    """By one rendering."""

    steps: int = 0
    look_at: int = _LOOK_STEPS
    """the number of steps at which the time is looked at"""
    look_every: int = _LOOK_STEPS
    """so many steps; each, once a long value was made, with which one step may take long"""
    made: int = 0
    seconds: float = 0.0
    """of renderings before the present one"""
    began: float | None = None
    """when the time was first looked at: short renderings never ask for it, which costs as much as
    they do"""

    def pause(self) -> None:
        if self.began is not None:
            self.seconds += time.thread_time() - self.began
            self.began = None


_spent: ContextVar[_Spent] = ContextVar("spent")


@contextmanager
def rendering() -> Generator[None]:
    """Count what one rendering does, anew unless it is done `together` with others."""
    if not _is_together.get():
        _spent.set(_Spent())
    try:
        yield
    finally:
        _spent.get().pause()


@contextmanager
def together() -> Generator[None]:
    """All that is rendered in the block has the bounds of one rendering: a template that breaks
    them is not asked once more in another way, which would take as long again."""
    if _is_together.get():
        yield
        return
    spent, is_together = _spent.set(_Spent()), _is_together.set(True)
    try:
        yield
    finally:
        _is_together.reset(is_together)
        _spent.reset(spent)


def bound(template: nodes.Template) -> None:
    """Have turns of loops counted, and measured what operators and literals make. What is only
    written out, as most of what a template joins is, is measured as it is written."""
    _Bounding().visit(template)


class _Bounding(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(None), TURN)))
        if node.test is not None:
            node.test = _filtered(node.test, TURN)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        with_const = isinstance(node.expr, nodes.Const) or isinstance(node.ops[0].expr, nodes.Const)
        short = with_const and len(node.ops) == 1 and node.ops[0].op in ("eq", "ne")
        return node if short else _filtered(node, TURN)

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
        if isinstance(node.arg, nodes.Slice):
            return _filtered(node, MADE)
        return node if isinstance(node.arg, nodes.Const) else _filtered(node, TURN)

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


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
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
        look_at_long(value)
        expect("%" if name == "format" else name, value, (*more, *kwargs.values()))
        return made(made_by(*args, **kwargs))

    return bounded


@pass_context  # so that it is not evaluated when the template is compiled
def turn(context: Context, value: Any) -> Any:
    """One more turn of a loop, or a value that took about as long."""
    del context
    step(1)
    return value


def counted_test(made_by: Callable[..., bool]) -> Callable[..., bool]:
    """The test, as one more turn of a loop."""

    @functools.wraps(made_by)
    def counted(*args: Any) -> bool:
        step(1)
        return made_by(*args)

    return counted


class ShortNamespace(Namespace):
    """A namespace that is written without what it holds, which is measured nowhere."""

    def __repr__(self) -> str:
        return "<Namespace>"


def trimmed(value: str, chars: str | None = None) -> str:
    """Jinja's filter `trim`."""
    if chars is not None:
        expect("trim", value, (chars,))
    return made(do_trim(value, chars))


@pass_eval_context
def joined_filter(
    evaluation: EvalContext, items: Iterable[Any], between: Any = "", attribute: Any = None
) -> str:
    """Jinja's filter `join`, of items that are measured first."""
    step(CALL_STEPS)
    if attribute is not None:
        expect("map", None, (attribute,))
        items = map(make_attrgetter(evaluation.environment, attribute), items)
    held = list(_measured(iter(items)))
    expect_joined(between, held)
    return made(sync_do_join(evaluation, held, between))


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
            _count(ITEM * len(cast("list[Any]", start)))
    return start


def _measured(items: Iterator[Any]) -> Iterator[Any]:
    """Yield what one filter makes as another asks for it."""
    for count, item in enumerate(items, 1):
        step(1)
        require(count * ITEM)
        yield made(item)


def before_call(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a function or method may be given, if it may be called."""
    step(CALL_STEPS)
    method = getattr(method, "__wrapped__", method)  # the sandbox wraps `format`
    name, value = getattr(method, "__name__", ""), getattr(method, "__self__", None)
    look_at_long(value)
    if name == "join" and isinstance(value, str) and args:
        items = args[0]
        items = list(_measured(cast("Iterator[Any]", items))) if _is_iterator(items) else items
        expect_joined(value, items)
        return (items, *args[1:])
    expect_method(name, value, (*args, *kwargs.values()))
    return args


def _is_iterator(value: object) -> bool:
    return isinstance(value, Iterator)


def step(count: int) -> None:
    spent = _spent.get()
    spent.steps += count
    if spent.steps < spent.look_at:
        return
    spent.look_at = spent.steps + spent.look_every
    if spent.steps > MOST_STEPS:
        raise TemplateError(f"it takes more than {MOST_STEPS} turns of loops")
    now = time.thread_time()
    spent.began = now if spent.began is None else spent.began
    if spent.seconds + now - spent.began > MOST_SECONDS:
        raise TemplateError(f"it takes more than {MOST_SECONDS:g} s of a processor")


def made(value: Any) -> Any:
    """The value, if it is not too large, and all that were made neither."""
    if isinstance(value, str):
        size = len(value)
        if size <= _SHORT:
            return value
    elif isinstance(value, list | tuple | dict):
        size = size_of(value)
    else:
        return value
    _count(size)
    return value


def _count(size: int) -> None:
    """A value of this size was made."""
    require(size)
    spent = _spent.get()
    spent.made += size
    if size > _LONG:
        spent.look_every = 1
        _look_from_now()
    if spent.made > MOST_MADE:
        raise TemplateError(f"it makes texts and lists of more than {MOST_MADE} characters")


def shrunk(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a method of a text gives that makes nothing longer; NotImplemented for any
    other."""
    if type(method) is not BuiltinMethodType or type(method.__self__) is not str:
        return NotImplemented
    if method.__name__ not in _SHRINKING or not kwargs.keys() <= _OF_JINJA:
        return NotImplemented
    if len(method.__self__) > _LONG:
        return NotImplemented
    for each in args:
        if type(each) is not str or len(each) > LONGEST_SOUGHT:
            return NotImplemented
    return made(method(*args))


def look_at_long(value: object) -> None:
    """Count the time of the call that follows on a long value; look at it before the next one."""
    if isinstance(value, str | list | tuple) and len(cast("list[Any]", value)) > _LONG:
        _look_from_now()


def _look_from_now() -> None:
    spent = _spent.get()
    spent.look_at = 0
    spent.began = time.thread_time() if spent.began is None else spent.began


def joined(pieces: Iterable[str]) -> str:
    """Return what is rendered, while it is not too large."""
    kept: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        require(size)
        kept.append(piece)
    return made("".join(kept))
