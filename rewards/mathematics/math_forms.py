r"""Whether two texts are one answer, by their form: numbers, words, lists, sets, tuples, intervals,
matrices, names with a value, inequalities; and expressions, which a judge compares.

A judge is a function `(gold, answer) -> bool`. It computes whatever an answer leaves open, so it is
asked only about expressions, and only where the answer leaves no more open than the reference does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rewards.mathematics.math_expressions import Judge, same_expression
from rewards.mathematics.math_numbers import Number, read_number, same_number
from rewards.mathematics.math_words import (
    DATE,
    choice_of,
    chosen_in,
    same_measure,
    same_sizes,
    same_words,
)
from rewards.mathematics.math_writing import ROW_END, tight

MOST_ITEMS = 32
_NAME = re.compile(
    r"(?:\\[A-Za-z]+ ?)?(?:\\text\{[^{}]*\}|[A-Za-z][A-Za-z']*)?(?:_\{?\w+\}?)?'*(?:\([^()=]*\))?"
)
_LABEL = re.compile(
    r"(?!.*\b(?:not|wrong|incorrect|false|minus|negative|less|more|least|most|than)\b)"
    r"(?:\\text\{)?[A-Za-z][A-Za-z ]{0,60}?(?::| is|=)\s*\}?\s*(?=\S)"
)
_WORDS = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,} ")
_NAMES = re.compile(r"\([A-Za-z](?:,[A-Za-z])+\)")
_RATIO = re.compile(r"^(?:\\frac\{([\d.]+)\}\{([\d.]+)\}|([\d.]+)/([\d.]+))$")
_RELATION = re.compile(r"\\le(?![a-z])|\\ge(?![a-z])|<|>")
_EQUALS = re.compile(r"(?<![<>!:\\])=(?![^{}]*(?:\{[^{}]*\}[^{}]*)*\})")
"""that parts two sides: not one in braces, as in `\\sum_{k=1}^n`"""
_NEGATION = re.compile(r"\\(?:not(?![a-z])|ne(?![a-z])|neg(?![a-z])|lnot|notin|nsubseteq|nmid)|¬")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_MATRIX = re.compile(r"\\begin\{([pb]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}")
_BUILT = re.compile(r"^\\\{[A-Za-z](?:\\in\s*(?:\\mathbb\{R\}|\\R|R))?\s*[|:]\s*(.*)\\\}$")
"""a set by what holds for it: `\\{x | x > 3\\}`"""
_AND, _OR = (
    re.compile(rf"\\text\{{ ?,?{word} ?\}}|(?<=[\s\d,)}}])\b{word}\b") for word in ("and", "or")
)
_JOINS = re.compile(r"\b(?:and|or)\b|\\cup")
_REALS = re.compile(r"\\mathbb\{R\}|\\R|\\text\{ ?all real(?:s| numbers) ?\}")

_NOTHING = tuple(
    re.compile(rf"(?i)(?:\\text\{{)?\s*(?:{said})\s*\}}?")
    for said in (
        r"(?:there (?:is|are) )?no solutions?|(?:the )?empty set|\\emptyset",
        r"(?:the limit |it )?(?:does not|doesn't) exist|dne",
    )
)
"""ways to say that there is none"""


class Interval(NamedTuple):
    """`(1, 2]` as `("(", "1", "2", "]")`."""

    opening: str
    low: str
    high: str
    closing: str


def same(gold: str, answer: str, judge: Judge) -> bool:
    """Return whether they denote the same; both in the one way of `math_writing.plain`."""
    gold, answer = (_BUILT.sub(r"\1", tight(text)) for text in (gold, answer))
    if not answer or not gold:
        return False
    if gold == answer or _squeezed(gold) == _squeezed(answer):
        return True
    if gold.removeprefix("\\") == answer.removeprefix("\\"):  # `pi`
        return True
    if any(nothing.fullmatch(gold) and nothing.fullmatch(answer) for nothing in _NOTHING):
        return True
    wanted, said = choice_of(gold), chosen_in(answer)
    if wanted and said:
        is_told = bool(wanted.text and said.text)
        return wanted.letter == said.letter and (not is_told or same(wanted.text, said.text, judge))
    if wanted and wanted.text:
        return same(wanted.text, answer, judge)
    if len(_NEGATION.findall(gold)) != len(_NEGATION.findall(answer)):
        return False
    if same_words(gold, answer) or same_measure(gold, answer):
        return True
    if re.fullmatch(r"[\d.]+(?::[\d.]+)+", gold):  # a time or a ratio
        return gold == _RATIO.sub(lambda found: ":".join(filter(None, found.groups())), answer)
    if DATE.search(gold):
        return False
    number = read_number(gold)
    if number is not None:
        return _is_number(number, answer)
    sizes = same_sizes(gold, answer)
    if sizes is not None:
        return sizes
    for compare in (_by_relation, _by_list, _by_brackets, _by_matrix, _by_name):
        found = compare(gold, answer, judge)
        if found is not None:
            return found
    return _same_expression(gold, answer, judge)


def _same_expression(gold: str, answer: str, judge: Judge) -> bool:
    return len(_split(answer)) == 1 and same_expression(gold, answer, judge)


def _squeezed(text: str) -> str:
    if re.search(r"\d,? \d", text):
        return text
    return re.sub(r"\s+" if re.search(r"[(\[{]", text) else r"\s+|(?<=\d),(?=\d{3})", "", text)


def _is_number(gold: Number, answer: str) -> bool:
    said = read_number(answer)
    if said is None:
        parts = _EQUALS.split(answer.replace(r"\approx", "="))
        if len(parts) > 1:
            last = parts[-1] if not _is_name(parts[-1]) else parts[0]
            said = read_number(tight(last))
        elif label := _LABEL.match(answer):
            said = read_number(tight(answer[label.end() :].replace("}", "", "}" in label[0])))
    return said is not None and same_number(gold, said)


# Each of these compares one form, and gives None where the reference does not have it.


def _by_relation(gold: str, answer: str, judge: Judge) -> bool | None:
    """Inequalities in one name, and intervals."""
    wanted, said = (
        _interval(a, is_open=bool(_RELATION.search(b))) for a, b in ((gold, answer), (answer, gold))
    )
    if wanted is None or said is None:
        return None if wanted is None else False
    if bool(_RELATION.search(gold)) and bool(_RELATION.search(answer)):
        names = [_relation_name(text) for text in (gold, answer)]
        if names[0] != names[1]:
            return False
    if (wanted.opening, wanted.closing) != (said.opening, said.closing):
        return False
    ends = [same(wanted.low, said.low, judge), same(wanted.high, said.high, judge)]
    return all(ends)


def _relation_name(text: str) -> str:
    return next((part for part in map(tight, _RELATION.split(text)) if _is_name(part)), "")


def _interval(text: str, *, is_open: bool) -> Interval | None:
    """Read an interval or an inequality. `(1, 2)` may as well be a point: `is_open` says that it is
    none."""
    if _RELATION.search(text):
        return _of_relation(text)
    text = re.sub(r"^[A-Za-z]\s*\\in(?![a-z])\s*", "", text)
    if _REALS.fullmatch(text):
        return Interval("(", r"-\infty", r"\infty", ")")
    if len(text) > 4 and text[0] in "([" and text[-1] in ")]" and _is_balanced(text[1:-1]):
        items = _split(text[1:-1])
        is_open = is_open or text[0] == "[" or text[-1] == "]" or r"\infty" in text
        if len(items) == 2 and is_open:
            return Interval(text[0], items[0], items[1], text[-1])
    return None


def _of_relation(text: str) -> Interval | None:
    parts = [tight(part) for part in _RELATION.split(text)]
    signs = _RELATION.findall(text)
    if len(parts) == 2 and _is_name(parts[0]):
        (sign,), end = signs, parts[1]
    elif len(parts) == 2 and _is_name(parts[1]):
        sign, end = _FLIPPED[signs[0]], parts[0]
    elif len(parts) == 3 and _is_name(parts[1]) and {"<", r"\le"} >= set(signs):
        return _between(parts[0], signs[0], signs[1], parts[2])
    elif len(parts) == 3 and _is_name(parts[1]) and {">", r"\ge"} >= set(signs):
        return _between(parts[2], _FLIPPED[signs[1]], _FLIPPED[signs[0]], parts[0])
    else:
        return None
    if sign in ("<", r"\le"):
        return _between(r"-\infty", "<", sign, end)
    return _between(end, _FLIPPED[sign], "<", r"\infty")


def _between(low: str, first: str, second: str, high: str) -> Interval:
    return Interval("(" if first == "<" else "[", low, high, ")" if second == "<" else "]")


def _by_list(gold: str, answer: str, judge: Judge) -> bool | None:
    r"""Several answers, in any order; `\pm` stands for two, and a union for its parts."""
    wanted = _listed(gold)
    if len(wanted) < 2:
        return None
    if _RELATION.search(gold + answer) and bool(_AND.search(gold)) != bool(_AND.search(answer)):
        return False
    if not re.search(r"[\d=<>]|\\[lg]e(?![a-z])", gold + answer):  # statements, sets, names
        joins = [_JOINS.findall(text) for text in (gold, answer)]
        if joins[0] != joins[1] and (all(joins) or r"\cup" in joins[0] + joins[1]):
            return False
    answer = _unlabelled(answer, gold)
    brackets = _brackets(answer)
    if brackets and brackets[0] == r"\{" and r"\cup" not in gold:
        return _any_order(wanted, brackets[1], judge)
    if brackets and brackets[0] == "(" and "(" not in gold:
        return _in_order(wanted, brackets[1], judge)
    names = [_EQUALS.split(item)[0] for item in wanted if len(_EQUALS.split(item)) > 1]
    if len({*names}) > 1 and not _EQUALS.search(answer):  # which is whose, the order says
        return _in_order(wanted, _listed(answer), judge)
    return _any_order(wanted, _listed(answer), judge)


def _unlabelled(text: str, gold: str) -> str:
    r"""Without `x\in` before it, and without one name for all: `x = 1, 2`."""
    text = re.sub(r"^[A-Za-z]\s*\\in(?![a-z])\s*", "", text)
    name, equals, rest = text.partition("=")
    if equals and "=" not in rest and _is_name(name) and not _EQUALS.search(gold):
        return tight(rest)
    return text


def _listed(text: str) -> list[str]:
    text = _OR.sub(",", _AND.sub(",", re.sub(r"\\text\{ ?,\s*(and|or) ?\}", ",", text)))
    text = re.sub(r",\s*,", ",", text.replace(";", ",").replace(r"\cup", ","))
    items = _split(text)
    if len(items) > 1 and (shared := re.match(r"([A-Za-z](?:_\d)?)=", items[0])):
        items = [
            f"{shared[0]}{i}" if not _EQUALS.search(i) and len(items) > 1 else i for i in items
        ]
    return [each for item in items for each in _both_signs(item)]


def _both_signs(text: str) -> list[str]:
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    plus = text.replace(r"\pm", "+").replace(r"\mp", "-")
    minus = text.replace(r"\pm", "+-").replace(r"\mp", "+")  # `5-2` would be a range
    return [tight(re.sub(r"(^|[=(,])\+\s*", r"\1", sign)) for sign in (plus, minus)]


def _members(items: Sequence[str]) -> list[str]:
    """Return the members of a set, each once."""
    return list(dict.fromkeys(sign for item in items for sign in _both_signs(item)))


def _any_order(wanted: Sequence[str], said: Sequence[str], judge: Judge) -> bool:
    if len(wanted) != len(said) or len(wanted) > MOST_ITEMS:
        return False
    alike = [[same(gold, answer, judge) for answer in said] for gold in wanted]
    left = list(range(len(said)))
    for row in alike:  # any that is equal will do: then it equals what its equals do
        found = next((at for at in left if row[at]), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _in_order(wanted: Sequence[str], said: Sequence[str], judge: Judge) -> bool:
    if len(wanted) != len(said):
        return False
    alike = [same(gold, answer, judge) for gold, answer in zip(wanted, said, strict=True)]
    return all(alike)  # each was compared, so that a judge is asked about all of them at once


def _by_brackets(gold: str, answer: str, judge: Judge) -> bool | None:
    """Sets in any order, tuples in theirs; the brackets of a tuple may be left out."""
    wanted = _brackets(_value_part(gold))
    if wanted is None:
        return None
    names = [_NAMES.match(text) for text in (gold, answer)]
    if names[0] and names[1] and names[0][0] != names[1][0]:
        return False
    answer = _value_part(_unlabelled(answer, gold))
    said = _brackets(answer)
    if wanted[0] == r"\{":
        items = said[1] if said and said[0] == r"\{" else [] if said else _listed(answer)
        return _any_order(_members(wanted[1]), _members(items), judge)
    if said is None:
        return len(_split(answer)) > 1 and _in_order(wanted[1], _split(answer), judge)
    return wanted[0::2] == said[0::2] and _in_order(wanted[1], said[1], judge)


def _value_part(text: str) -> str:
    """Return what is said of a tuple of names: `(x,y)=(1,2)` -> `(1,2)`; of a set, `S=` or
    `x\\in`."""
    text = re.sub(r"^[A-Za-z]\s*\\in(?![a-z])\s*", "", text)
    found = re.match(rf"(?:{_NAMES.pattern}|[A-Za-z])=", text)
    return tight(text[found.end() :]) if found else text


def _brackets(text: str) -> tuple[str, list[str], str] | None:
    r"""(opening, items, closing) where one pair of brackets is around all: `(1,2)`, `\{1\}`."""
    for opening, closing in ((r"\{", r"\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            items = _split(inner)
            if _is_balanced(inner) and (len(items) > 1 or opening == r"\{"):
                return opening, items, closing
    return None


def _is_balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if depth < 0:
            return False
    return depth == 0


def _by_matrix(gold: str, answer: str, judge: Judge) -> bool | None:
    wanted, said = _cells(_value_part(gold)), _cells(_value_part(answer))
    if wanted is None:
        return None
    if said is None or [len(row) for row in wanted] != [len(row) for row in said]:
        return False
    alike = [_in_order(*rows, judge) for rows in zip(wanted, said, strict=True)]
    return all(alike)


def _cells(text: str) -> list[list[str]] | None:
    found = _MATRIX.fullmatch(re.sub(r"^[\[(](\\begin\{array\}.*)[\])]$", r"\1", text))
    if not found:
        return None
    rows = found[2].strip().removesuffix(ROW_END).split(ROW_END)
    return [[tight(cell) for cell in row.split("&")] for row in rows]


def _by_name(gold: str, answer: str, judge: Judge) -> bool | None:
    """Return a name with its value, which is worth the value alone: `x=5` and `5`."""
    wanted, said = _EQUALS.split(gold), _EQUALS.split(answer)
    if any(_WORDS.search(part) for part in (*wanted[1:-1], *said[1:-1])):  # `x = 3 when y = 2`
        return False
    if len(wanted) == 1:
        if len(said) == 1:
            return None
        is_named = _is_name(said[0]) or not re.search(r"[A-Za-z]", said[0])
        return is_named and same(gold, said[-1], judge)
    if not _is_name(wanted[0]):
        if len(wanted) == 2 and _is_name(wanted[1]):
            return same(f"{wanted[1]}={wanted[0]}", answer, judge)
        return len(said) > 1 and _same_expression(gold, answer, judge)
    if len(said) == 1:
        return same(wanted[-1], answer, judge)
    if _is_name(said[-1]) and not _is_name(said[0]):
        said = said[::-1]
    if _is_name(said[0]):
        return tight(wanted[0]) == tight(said[0]) and same(wanted[-1], said[-1], judge)
    if not re.search(r"[A-Za-z]", said[0]):
        return same(wanted[-1], said[-1], judge)
    return read_number(tight(wanted[-1])) is None and judge(gold, answer)


def _is_name(text: str) -> bool:
    text = tight(text)
    return bool(text) and bool(_NAME.fullmatch(text)) and bool(re.search("[A-Za-z]", text))


def _split(text: str) -> list[str]:
    """The items between commas that stand in no brackets. A comma that parts thousands does not
    count where others are followed by white space."""
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
