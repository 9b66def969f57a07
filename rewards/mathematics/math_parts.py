r"""How a text in the one way of `math_writing.plain` falls into parts: items between commas, sides
of equations, brackets, intervals."""

from __future__ import annotations

import re
from typing import NamedTuple

from rewards.mathematics.math_writing import tight

RELATION = re.compile(r"\\le(?![a-z])|\\ge(?![a-z])|<|>")
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_NAME = re.compile(
    r"(?:\\[A-Za-z]+ ?)?(?:\\text\{[^{}]*\}|[A-Za-z][A-Za-z']*)?(?:_\{?\w+\}?)?'*(?:\([^()=]*\))?"
)
_MEASURED = re.compile(
    r"\|[A-Z]{2}\||\\(?:sin|cos|tan|cot) ?\(?(?:\\[a-z]+|[A-Z])\)?|[A-Z]\([^()]*\)|[A-Z]_\{[^{}]*\}"
    r"|\\(?:bar|hat|overline|angle|triangle) ?\{?[A-Za-z]+\}?"
)
"""what a number is said of that has no name of its own: `|AB|`, `\\tan\\alpha`, `P(X=1)`"""
_ALTERED = re.compile(r"[-+*/^\d!]|\\(?:frac|sqrt|ln|log|exp)(?![a-z])")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_REALS = re.compile(r"\\mathbb\{R\}|\\R|\\text\{ ?all real(?:s| numbers) ?\}")


class Interval(NamedTuple):
    """`(1, 2]` as `("(", "1", "2", "]")`."""

    opening: str
    low: str
    high: str
    closing: str


class Brackets(NamedTuple):
    """`(1, 2]` as `("(", ["1", "2"], "]")`."""

    opening: str
    items: list[str]
    closing: str


def sides(text: str) -> list[str]:
    """Return what stands between equal signs; those in brackets and environments part nothing, as
    of `\\sum_{k=1}^n` and `P(X=1)`."""
    head, begin, environment = text.partition(r"\begin")
    found, start = list[str](), 0
    for sign in _EQUALS.finditer(head):
        before = head[start : sign.start()]
        if sum(map(before.count, "([{")) <= sum(map(before.count, ")]}")):
            found.append(before)
            start = sign.end()
    return [*found, head[start:] + begin + environment]


def is_name(text: str) -> bool:
    text = tight(text)
    return bool(text) and bool(_NAME.fullmatch(text)) and bool(re.search("[A-Za-z]", text))


def is_measured(text: str) -> bool:
    """Return whether a number may be said of it, though it is no name."""
    return _MEASURED.fullmatch(tight(text)) is not None


def is_altered(text: str) -> bool:
    """Return whether it is made of one variable, as `2x` is, whose value is another one."""
    text = re.sub(r"_\{[^{}]*\}|_\w", "", text)
    letters = {*re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text))}
    is_whole = is_name(text) and not re.search(r"\\(?:ln|log|exp)(?![a-z])", text)
    return len(letters) == 1 and not is_whole and _ALTERED.search(text) is not None


def split(text: str) -> list[str]:
    """Return the items between commas that stand in no brackets. A comma that parts thousands does
    not count where others are followed by white space."""
    items, depth, start = list[str](), 0, 0
    is_spaced = re.search(r",\s", text) is not None
    for at, letter in enumerate(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
        if letter != "," or depth > 0:
            continue
        if is_spaced and re.match(r",\d{3}(?!\d)", text[at:]) and re.search(r"\d$", text[:at]):
            continue
        items.append(tight(text[start:at]))
        start = at + 1
    return [*items, tight(text[start:])]


def is_balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if depth < 0:
            return False
    return depth == 0


def brackets(text: str) -> Brackets | None:
    r"""Return opening, items and closing where one pair is around all: of `(1,2)`, of `\{1\}`."""
    for opening, closing in ((r"\{", r"\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            items = split(inner)
            if is_balanced(inner) and (len(items) > 1 or opening == r"\{"):
                return Brackets(opening, items, closing)
    return None


def interval(text: str, *, is_open: bool) -> Interval | None:
    """Read an interval or an inequality. `(1, 2)` may as well be a point: `is_open` says that it is
    none."""
    if RELATION.search(text):
        return _of_relation(text)
    text = re.sub(r"^[A-Za-z]\s*\\in(?![a-z])\s*", "", text)
    if _REALS.fullmatch(text):
        return Interval("(", r"-\infty", r"\infty", ")")
    if len(text) > 4 and text[0] in "([" and text[-1] in ")]" and is_balanced(text[1:-1]):
        items = split(text[1:-1])
        is_open = is_open or text[0] == "[" or text[-1] == "]" or r"\infty" in text
        if len(items) == 2 and is_open:
            return Interval(text[0], items[0], items[1], text[-1])
    return None


def relation_name(text: str) -> str:
    """Return the name that an inequality bounds."""
    return next((part for part in map(tight, RELATION.split(text)) if is_name(part)), "")


def _of_relation(text: str) -> Interval | None:
    parts = [tight(part) for part in RELATION.split(text)]
    signs = RELATION.findall(text)
    if len(parts) == 2 and is_name(parts[0]):
        (sign,), end = signs, parts[1]
    elif len(parts) == 2 and is_name(parts[1]):
        sign, end = _FLIPPED[signs[0]], parts[0]
    elif len(parts) == 3 and is_name(parts[1]) and {"<", r"\le"} >= set(signs):
        return _between(parts[0], signs[0], signs[1], parts[2])
    elif len(parts) == 3 and is_name(parts[1]) and {">", r"\ge"} >= set(signs):
        return _between(parts[2], _FLIPPED[signs[1]], _FLIPPED[signs[0]], parts[0])
    else:
        return None
    if sign in ("<", r"\le"):
        return _between(r"-\infty", "<", sign, end)
    return _between(end, _FLIPPED[sign], "<", r"\infty")


def _between(low: str, first: str, second: str, high: str) -> Interval:
    return Interval("(" if first == "<" else "[", low, high, ")" if second == "<" else "]")
