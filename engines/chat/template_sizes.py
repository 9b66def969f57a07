"""How large what a template asks for would be, before it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sized
from itertools import chain
from typing import Any, cast

from jinja2 import TemplateError

LARGEST = 16 << 20
"""characters or items of one value, and characters of what is rendered"""
ITEM = 16
"""characters that an item of a list counts for"""
LONGEST_SOUGHT = 256
"""characters of a text that is looked for from the right, of those that are stripped, and of an
attribute's name: such a search takes as long as both texts multiplied"""
_LARGEST_NUMBER = 1 << 20
"""that a call is given, such as a width; characters of a text that has fields to fill in"""
_LARGEST_POWER = 64
_MOST_BITS = 4096
"""of a number that is multiplied, or comes of a power"""
_SEEKING = frozenset((
    "strip", "lstrip", "rstrip", "trim", "rfind", "rindex", "rsplit", "rpartition", "strftime",
    "sort", "unique", "min", "max", "groupby", "map", "sum", "selectattr", "rejectattr",
))  # fmt: skip
_REFUSED = {
    "encode": "it encodes a text, whose bytes no template can write",
    "striptags": "it strips tags, which can take minutes",
}
_HOLDERS = (list, tuple, dict, type({}.keys()), type({}.values()), type({}.items()))
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_NUMBER = re.compile(r"\d+")
_GIVEN_WIDTH = re.compile(r"%[^%a-zA-Z]*\*")
_INNER_FIELD = re.compile(r"\{[^{}:!]*[.\[]|\{[^{}]*\{")


def require(size: int) -> None:
    if size > LARGEST:
        raise TemplateError(f"it makes a text or a list of more than {LARGEST} characters or items")


def size_of(value: object) -> int:
    """Characters, of any depth; an item counts as several. It stops at what is too large."""
    if isinstance(value, str):
        return len(value)
    size, waiting = 0, [cast("Any", value)]
    while waiting and size <= LARGEST:
        each = waiting.pop()
        items: Iterable[Any] = chain(each, each.values()) if isinstance(each, dict) else each
        for item in items:
            size += ITEM
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, int):
                size += item.bit_length() >> 2
            elif isinstance(item, _HOLDERS) and item:
                waiting.append(item)
    return size


def expect(name: str, value: Any, given: tuple[Any, ...]) -> None:
    """Raises TemplateError before a method or filter of this name makes what is too large of a
    value and what it is given, or looks for too much."""
    if name in _REFUSED:
        raise TemplateError(_REFUSED[name])
    for each in given:
        if isinstance(each, str):
            require(len(each))
            if name in _SEEKING and len(each) > LONGEST_SOUGHT:
                raise TemplateError(f"it gives '{name}' more than {LONGEST_SOUGHT} characters")
        elif isinstance(each, int) and abs(each) > _LARGEST_NUMBER:
            raise TemplateError(f"it gives a call the number {each:.3g}, above {_LARGEST_NUMBER}")
    if isinstance(value, str) and (size := _SIZES.get(name)):
        require(size(value, *given))


def expect_method(name: str, value: Any, given: tuple[Any, ...]) -> None:
    """Raises TemplateError also where a number makes bytes, which nothing here measures."""
    if isinstance(value, int | float | bytes) or value in (int, float):
        raise TemplateError(f"it calls '{name}' of a number")
    expect(name, value, given)


def expect_joined(between: object, items: Any) -> None:
    """Raises TemplateError before items, with a text between them, are too large together."""
    count = len(items) if isinstance(items, Sized) else 0
    inner = size_of(items) if isinstance(items, (str, *_HOLDERS)) else ITEM * count
    require(inner + count * (len(between) if isinstance(between, str) else 0))


def operands(operator: str, left: Any, right: Any) -> None:
    """Raises TemplateError before a result that is too large is made."""
    if operator == "**" and isinstance(right, int | float) and abs(right) > _LARGEST_POWER:
        raise TemplateError(f"it raises a number to a power above {_LARGEST_POWER}")
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        _require_bits(left.bit_length() * abs(right))
    if operator == "%" and isinstance(left, str):
        parts = cast("tuple[Any, ...]", right) if isinstance(right, tuple) else (right,)
        require(_percent_filled(left, *parts))
    if operator != "*":
        return
    for text, times in ((left, right), (right, left)):
        if isinstance(text, str | list | tuple) and isinstance(times, int):
            require(size_of(cast("object", text)) * times)
        elif isinstance(text, int):
            _require_bits(text.bit_length())


def _require_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TemplateError(f"it multiplies numbers of more than {_MOST_BITS} bits")


def _replaced(text: str, old: object = "", new: object = "", *_: object) -> int:
    return len(text) + text.count(str(old)) * len(str(new))


def _indented(text: str, width: object = 4, *_: object) -> int:
    each = len(width) if isinstance(width, str) else int(cast("int", width))
    return len(text) + _in_lines(text) + (text.count("\n") + 1) * each


def _expanded(text: str, size: int = 8) -> int:
    return len(text) + text.count("\t") * size


def _percent_filled(text: str, *given: object) -> int:
    if _GIVEN_WIDTH.search(text):
        raise TemplateError("it formats with a width that it computes")
    return _filled(text, text.count("%"), given)


def _brace_filled(text: str, *given: object) -> int:
    if _INNER_FIELD.search(text.replace("{{", "")):
        raise TemplateError("it formats with a width that it computes, or a part of a value")
    return _filled(text, text.count("{"), given)


def _filled(text: str, fields: int, given: tuple[object, ...]) -> int:
    """Each field is at most as long as the longest thing that it is given, or as its width."""
    if not fields:
        return len(text)
    if len(text) > _LARGEST_NUMBER:
        raise TemplateError(f"it fills in a text or a list of more than {_LARGEST_NUMBER}")
    longest = [int(found) for found in _NUMBER.findall(text)]
    for each in given:
        if isinstance(each, str | int):
            longest.append(abs(each) if isinstance(each, int) else len(each))
        elif isinstance(each, _HOLDERS):
            longest.append(size_of(cast("object", each)))
    return len(text) + fields * max(longest, default=0)


def _translated(text: str, table: object = None, *_: object) -> int:
    if isinstance(table, dict):
        table = list(cast("dict[Any, Any]", table).values())
    values = cast("list[Any]", table) if isinstance(table, list | tuple) else ()
    return len(text) * max([1, *(len(v) for v in values if isinstance(v, str))])


def _in_items(text: str, *_: object) -> int:
    return len(text) * ITEM


def _in_parts(text: str, by: object = None, *_: object) -> int:
    return len(text) // 2 * ITEM if not isinstance(by, str) or not by else text.count(by) * ITEM


def _in_lines(text: str, *_: object) -> int:
    return ITEM * sum(map(text.count, _LINE_ENDS))


def _in_digits(text: str, *_: object) -> int:
    if len(text) > _MOST_BITS:
        raise TemplateError("it reads a number from a text that is too long")
    return 0


_SIZES: dict[str, Callable[..., int]] = {
    "replace": _replaced,
    "indent": _indented,
    "expandtabs": _expanded,
    "%": _percent_filled,
    "format": _brace_filled,
    "format_map": _brace_filled,
    "translate": _translated,
    "split": _in_parts,
    "rsplit": _in_parts,
    "splitlines": _in_lines,
    "int": _in_digits,
    **dict.fromkeys(
        ("list", "sort", "unique", "groupby", "slice", "title", "wordcount"), _in_items
    ),
}
"""at most how long the result is, or what is held meanwhile, by the name of a method or a filter
(`%`: the filter `format`)"""
