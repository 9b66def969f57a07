r"""How a text in the one way of `math_writing.plain` falls into parts: items between commas, sides
of equations, brackets, intervals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rewards.mathematics.math_writing import tight

RELATION = re.compile(r"\\le(?![a-z])|\\ge(?![a-z])|<|>")
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|lambda|mu|sigma|phi|omega|tau|rho|eta|kappa|nu|xi|psi|zeta"
    r"|theta|chi|Theta|Delta|Sigma|Omega|Gamma|Lambda|Phi|Psi|Pi|ell|hbar)(?![A-Za-z])"
)
_ACCENTS = r"\\(?:vec|hat|bar|tilde|overline|overrightarrow|angle|triangle|math[a-z]+)"
_NAME = re.compile(
    rf"(?:(?:{_GREEK}|{_ACCENTS}) ?)?"
    r"(?:\{[A-Za-z]+\}|\\text\{[^{}]*\}|[A-Za-z][A-Za-z']*)?(?:_\{?\w+\}?)?'*(?:\([^()=]*\))?"
)
_MEASURED = re.compile(
    r"\|[A-Z]{2}\||\\(?:sin|cos|tan|cot) ?\(?(?:\\[a-z]+|[A-Z])\)?|[A-Z]\([^()]*\)|[A-Z]_\{[^{}]*\}"
    r"|\\(?:bar|hat|overline|angle|triangle) ?\{?[A-Za-z]+\}?"
)
"""what a number is said of that has no name of its own: `|AB|`, `\\tan\\alpha`, `P(X=1)`"""
_NO_LABEL = re.compile(
    r"(?i)\d|\b(?:not|wrong|incorrect|false|minus|negative|less|more|least|most|than|never|error|half|"
    r"twice|double|third|(?:square|cube)[ds]?|cannot|except|upper|lower|bound|impossible|above|below|"
    r"over|under|excluded|n?either|rejected|extraneous|invalid|opposite|reciprocal|up to|almost|"
    r"beyond|outside|all but|anything but|minimum|root|times|log|or|otherwise|alternatively|if)\b"
)
"""words after which a value is another thing's, or denied"""
AND, OR = (
    re.compile(rf"\\text\{{ ?,?{word} ?\}}|(?<=[\s\d,)}}])\b{word}\b") for word in ("and", "or")
)
_LABEL = re.compile(r"(?:\\text\{)?([A-Za-z][A-Za-z ]{0,60}?)(?::| is|=)\s*\}?\s*(?=\S)")
_RELATED = re.compile(r"\\(?:[lg]eqq|ll|gg|gtrsim|lesssim|sim|equiv|ne|to|in)(?![a-z])")
_ALTERED = re.compile(r"[-+*/^\d!]|\\(?:frac|sqrt|ln|log|exp)(?![a-z])")
_NAMED_TUPLE = re.compile(r"\(([A-Za-z](?:,[A-Za-z])+)\)=\((.*)\)")
_BOTH = re.compile(r"(.+?)(?:\\text\{ ?and ?\}| and )(.+)")
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
    if not text or not _NAME.fullmatch(text) or not re.search("[A-Za-z]", text):
        return False
    return r"\text" not in text or is_label(text)


def is_label(text: str) -> bool:
    """Return whether words say nothing but what a value is of."""
    return not _NO_LABEL.search(text)


def labelled(text: str) -> str:
    """Return what stands behind words that say what it is: of `The area is 5` the `5`; empty where
    there are none."""
    label = _LABEL.match(text)
    if not label or "=" in label[0] or not is_label(label[1]):
        return ""
    return tight(text[label.end() :].replace("}", "", "}" in label[0]))


def is_measured(text: str) -> bool:
    """Return whether a number may be said of it, though it is no name."""
    return _MEASURED.fullmatch(tight(text)) is not None


def may_have_value(text: str) -> bool:
    """Return whether a number behind an equal sign is the answer: of a name, of several such as
    `m+n`, and of what is computed, but not of `2x`, whose variable has another value."""
    if is_name(text) or is_measured(text):
        return True
    if _RELATED.search(text):
        return False
    if r"\text" in text or re.search(r"(?<![A-Za-z\\])[A-Za-z]{3,}", text):
        return is_label(text)
    named = re.sub(r"_\{[^{}]*\}|_\w", "", re.sub(_GREEK, "x", text))
    letters = {*re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", named))}
    return len(letters) != 1 or not _ALTERED.search(named)


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


def between_bounds(text: str) -> Interval | None:
    """Return what two bounds of one name leave: of `x>1 and x\\le5` the `(1,5]`."""
    both = _BOTH.fullmatch(text)
    if not both or relation_name(both[1]) != relation_name(both[2]):
        return None
    low, high = (interval(tight(part), is_open=True) for part in both.groups())
    if low is None or high is None:
        return None
    if low.low == r"-\infty":
        low, high = high, low
    is_between = (low.high, high.low) == (r"\infty", r"-\infty")
    return Interval(low.opening, low.low, high.high, high.closing) if is_between else None


def each_named(text: str) -> str:
    """Return `x=1,y=2` for `(x,y)=(1,2)`, and any other text as it is."""
    found = _NAMED_TUPLE.fullmatch(text)
    names, values = (found[1].split(","), split(found[2])) if found else ([], [])
    if not names or len(names) != len(values):
        return text
    return ",".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


def by_their_names(items: Sequence[str]) -> list[str]:
    """Return the values of `y=2, x=1`: coordinates by the alphabet, others in their order; none
    where not all have names."""
    named = [sides(item) for item in items]
    if not all(len(parts) == 2 and is_name(parts[0]) for parts in named):
        return []
    is_sorted = any({name for name, _ in named} <= {*kin} for kin in ("xyz", "abc"))
    return [value for _, value in (sorted(named) if is_sorted else named)]


def listed(text: str) -> list[str]:
    """Return the answers that a text gives: of `x=1 or 2` the `x=1` and the `x=2`."""
    text = OR.sub(",", AND.sub(",", re.sub(r"\\text\{ ?,\s*(and|or) ?\}", ",", text)))
    text = re.sub(r",\s*,", ",", text.replace(";", ",").replace(r"\cup", ","))
    items = split(text)
    if len(items) > 1 and (shared := re.match(r"([A-Za-z](?:_\d)?)=", items[0])):
        items = [f"{shared[0]}{i}" if len(sides(i)) == 1 else i for i in items]
    return [each for item in items for each in both_signs(item)]


def both_signs(text: str) -> list[str]:
    """Return what `\\pm` stands for: of `\\pm2` the `2` and the `-2`."""
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    plus = text.replace(r"\pm", "+").replace(r"\mp", "-")
    minus = text.replace(r"\pm", "+-").replace(r"\mp", "+")  # `5-2` would be a range
    return [tight(re.sub(r"(^|[=(,])\+\s*", r"\1", sign)) for sign in (plus, minus)]
