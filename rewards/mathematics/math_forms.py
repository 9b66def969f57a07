r"""Whether two texts are one answer, by their form: numbers, words, lists, sets, tuples, intervals,
matrices, names with a value, inequalities; and expressions, which a judge compares.

A judge is a function `(gold, answer) -> bool`. It computes whatever an answer leaves open, so it is
asked only about expressions, and only where the answer leaves no more open than the reference does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rewards.mathematics.math_chains import says_number
from rewards.mathematics.math_expressions import Judge, same_expression
from rewards.mathematics.math_numbers import read_number
from rewards.mathematics.math_parts import (
    AND,
    OR,
    RELATION,
    between_bounds,
    both_signs,
    brackets,
    by_their_names,
    each_named,
    interval,
    is_measured,
    is_name,
    labelled,
    listed,
    relation_name,
    sides,
    split,
)  # fmt: skip
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
_WORDS = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,} ")
_NAMES = re.compile(r"\([A-Za-z](?:,[A-Za-z])+\)")
_RATIO = re.compile(r"^(?:\\frac\{([\d.]+)\}\{([\d.]+)\}|([\d.]+)/([\d.]+))$")
_NEGATION = re.compile(r"\\(?:not(?![a-z])|ne(?![a-z])|neg(?![a-z])|lnot|notin|nsubseteq|nmid)|¬")
_WHOLE_TEXT = re.compile(r"^\\text\{([^{}]*[=<>][^{}]*)\}$")
_CHEMICAL = re.compile(r"(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+(?:\^\d*[+-])?")
_CHEMICAL_MARKS = re.compile(r"\\(?:text|ce)(?![a-z])|[{}_\s]")
_LETTER = re.compile(r"\(?([A-Da-d])\)?")
_TRUTH = re.compile(
    r"(?i)(?:\\text\{)?\s*(?:t|f|true|false|yes|no|right|wrong|odd|even|"
    r"(?:in|de)creasing|up|down|left|positive|negative)\s*\}?"
)
_POINT = re.compile(r"([A-Z])(?=\([^()]*,[^()]*\)$)")
_OBJECT = re.compile(
    r"(?:\\(?:vec|overrightarrow) ?\{?[A-Za-z]{1,2}\}?|[A-Za-z](?:\^\{?(?:-1|T)\}?)?)="
)
"""the name of a vector, a matrix or a set"""
_LINES = re.compile(r"\\begin\{cases\}([^&]*)\\end\{cases\}")
_MATRIX = re.compile(r"\\begin\{([pb]?matrix|array|cases)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}")
_BUILT = re.compile(r"^\\\{[A-Za-z](?:\\in\s*(?:\\mathbb\{R\}|\\R|R))?\s*[|:]\s*(.*)\\\}$")
"""a set by what holds for it: `\\{x | x > 3\\}`"""
_JOINS = re.compile(r"\b(?:and|or)\b|\\cup")
_NOTHING = tuple(
    re.compile(rf"(?i)(?:\\text\{{)?\s*(?:{said})\s*\}}?")
    for said in (
        r"(?:there (?:is|are) )?no solutions?|(?:the )?empty set|\\emptyset",
        r"(?:the limit |it )?(?:does not|doesn't) exist|dne",
    )
)
"""ways to say that there is none"""


def same(gold: str, answer: str, judge: Judge) -> bool:
    """Return whether they denote the same; both in the one way of `math_writing.plain`."""
    answer = _WHOLE_TEXT.sub(r"\1", tight(answer).removeprefix("=")).strip()
    gold, answer = (_listed_lines(_BUILT.sub(r"\1", tight(text))) for text in (gold, answer))
    if not answer or not gold:
        return False
    if _is_written_alike(gold, answer):
        return True
    for compare in _FORMS:
        found = compare(gold, answer, judge)
        if found is not None:
            return found
    return _same_expression(gold, answer, judge)


def _is_written_alike(gold: str, answer: str) -> bool:
    """Return whether they are one text but for white space, the backslash of `\\pi`, the case of a
    choice's letter, the marks in a chemical formula, and the words for nothing."""
    if gold == answer or _squeezed(gold) == _squeezed(answer):
        return True
    letters = [_LETTER.fullmatch(text) for text in (gold, answer)]
    if letters[0] and letters[1] and letters[0][1].casefold() == letters[1][1].casefold():
        return True
    if gold.removeprefix("\\") == answer.removeprefix("\\"):
        return True
    formulas = [_CHEMICAL_MARKS.sub("", text) for text in (gold, answer)]
    if formulas[0] == formulas[1] and _CHEMICAL.fullmatch(formulas[0]):
        return True
    return any(nothing.fullmatch(gold) and nothing.fullmatch(answer) for nothing in _NOTHING)


def _same_expression(gold: str, answer: str, judge: Judge) -> bool:
    return len(split(answer)) == 1 and same_expression(gold, answer, judge)


def _squeezed(text: str) -> str:
    if re.search(r"\d,? \d", text):
        return text
    return re.sub(r"\s+" if re.search(r"[(\[{]", text) else r"\s+|(?<=\d),(?=\d{3})", "", text)


def _listed_lines(text: str) -> str:
    """Return a system, one equation a line, as a list."""
    return _LINES.sub(lambda found: tight(found[1].replace(ROW_END, ",")), text)


# Each of these compares one form, and gives None where the reference does not have it.


def _by_choice(gold: str, answer: str, judge: Judge) -> bool | None:
    wanted, said = choice_of(gold), chosen_in(answer)
    if wanted and said:
        is_told = bool(wanted.text and said.text)
        return wanted.letter == said.letter and (not is_told or same(wanted.text, said.text, judge))
    return same(wanted.text, answer, judge) if wanted and wanted.text else None


def _by_words(gold: str, answer: str, judge: Judge) -> bool | None:
    """Words, dates, times, ratios and measures; what one of them denies, the other does."""
    if len(_NEGATION.findall(gold)) != len(_NEGATION.findall(answer)):
        return False
    are_numbers = None not in (read_number(gold), read_number(answer))  # `MHz` is not `mHz`
    if (not are_numbers and same_words(gold, answer)) or same_measure(gold, answer):
        return True
    if re.fullmatch(r"[\d.]+(?::[\d.]+)+", gold):  # a time or a ratio
        return gold == _RATIO.sub(lambda found: ":".join(filter(None, found.groups())), answer)
    return False if re.search(r"\d:\d\d", gold) or DATE.search(gold) else None


def _by_number(gold: str, answer: str, judge: Judge) -> bool | None:
    number = read_number(gold)
    if number is not None:
        return says_number(number, answer)
    return same_sizes(gold, answer)


def _by_approximation(gold: str, answer: str, judge: Judge) -> bool | None:
    """What is said exactly and then rounded."""
    if r"\approx" not in answer or r"\approx" in gold:
        return None
    exact, *rounded = map(tight, answer.split(r"\approx"))
    return all(map(read_number, rounded)) and same(gold, exact, judge)


def _by_relation(gold: str, answer: str, judge: Judge) -> bool | None:
    """Inequalities in one name, and intervals."""
    wanted, said = (
        interval(a, is_open=bool(RELATION.search(b))) for a, b in ((gold, answer), (answer, gold))
    )
    said = said or between_bounds(answer)
    if wanted is None or said is None:
        return None if wanted is None else False
    if bool(RELATION.search(gold)) and bool(RELATION.search(answer)):
        names = [relation_name(text) for text in (gold, answer)]
        if names[0] != names[1]:
            return False
    if (wanted.opening, wanted.closing) != (said.opening, said.closing):
        return False
    ends = [same(wanted.low, said.low, judge), same(wanted.high, said.high, judge)]
    return all(ends)


def _by_list(gold: str, answer: str, judge: Judge) -> bool | None:
    r"""Several answers, in any order; `\pm` stands for two, and a union for its parts."""
    wanted = listed(gold)
    if len(wanted) < 2:
        return None
    if RELATION.search(gold + answer) and bool(AND.search(gold)) != bool(AND.search(answer)):
        return False
    if not re.search(r"[\d=<>]|\\[lg]e(?![a-z])", gold + answer):  # statements, sets, names
        joins = [_JOINS.findall(text) for text in (gold, answer)]
        if "or" in joins[1] and "or" not in joins[0]:
            return False
        if joins[0] != joins[1] and (all(joins) or r"\cup" in joins[0] + joins[1]):
            return False
    answer = each_named(_unlabelled(answer, gold))
    names = {sides(item)[0] for item in wanted if len(sides(item)) > 1}
    held = brackets(answer)
    if len(names) > 1 and (OR.search(answer) or (held and held.opening == r"\{")):
        return False
    if held and held.opening == r"\{" and r"\cup" not in gold:
        return _any_order(wanted, held.items, judge)
    if held and held.opening == "(" and "(" not in gold:
        return _in_order(wanted, held.items, judge)
    repeats = len({*wanted}) < len(wanted) and all(re.fullmatch(r"[A-Za-z]+", w) for w in wanted)
    if repeats or all(map(_TRUTH.fullmatch, wanted)):
        return _in_order(wanted, listed(answer), judge)
    if len(names) > 1 and len(sides(answer)) == 1:  # which is whose, the order says
        return _in_order(wanted, listed(answer), judge)
    return _any_order(wanted, listed(answer), judge)


def _unlabelled(text: str, gold: str) -> str:
    r"""Without `x\in` before it, and without one name for all: `x = 1, 2`."""
    text = re.sub(r"^[A-Za-z]\s*\\in(?![a-z])\s*", "", text)
    name, equals, rest = text.partition("=")
    if equals and "=" not in rest and is_name(name) and len(sides(gold)) == 1:
        return tight(rest)
    return text


def _members(items: Sequence[str]) -> list[str]:
    """Return the members of a set, each once."""
    return list(dict.fromkeys(sign for item in items for sign in both_signs(item)))


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
    wanted = brackets(_value_part(gold))
    if wanted is None:
        return None
    for pattern in (_NAMES, _POINT, _OBJECT):
        names = [pattern.match(text) for text in (gold, answer)]
        if names[0] and names[1] and names[0][0] != names[1][0]:
            return False
    answer = labelled(answer) or answer
    in_order = by_their_names(listed(each_named(answer)))
    answer = _value_part(_unlabelled(answer, gold))
    said = brackets(answer)
    if wanted.opening == r"\{":
        items = said.items if said and said.opening == r"\{" else [] if said else listed(answer)
        return _any_order(_members(wanted.items), _members(items), judge)
    if in_order or said is None:
        items = in_order or split(answer)
        return len(items) > 1 and _in_order(wanted.items, items, judge)
    return wanted[0::2] == said[0::2] and _in_order(wanted.items, said.items, judge)


def _value_part(text: str) -> str:
    """Return what is said of a tuple of names: of `(x,y)=(1,2)` the `(1,2)`; of a set `S`, and of a
    point `A(1,2)`."""
    text = _POINT.sub("", re.sub(r"^[A-Za-z]\s*\\in(?![a-z])\s*", "", text))
    found = re.match(rf"(?:{_NAMES.pattern}=|{_OBJECT.pattern})", text)
    return tight(text[found.end() :]) if found else text


def _by_matrix(gold: str, answer: str, judge: Judge) -> bool | None:
    wanted, said = _cells(_value_part(gold)), _cells(_value_part(answer))
    if wanted is None:
        return None
    names = [_OBJECT.match(text) for text in (gold, answer)]
    if names[0] and names[1] and names[0][0] != names[1][0]:
        return False
    if said is None or [len(row) for row in wanted] != [len(row) for row in said]:
        return False
    alike = [_in_order(*rows, judge) for rows in zip(wanted, said, strict=True)]
    return all(alike)


def _cells(text: str) -> list[list[str]] | None:
    found = _MATRIX.fullmatch(re.sub(r"^[\[(](\\begin\{array\}.*)[\])]$", r"\1", text))
    if not found:
        return None
    rows = found[2].strip().removesuffix(ROW_END).split(ROW_END)
    if found[1] != "cases":
        return [[tight(cell) for cell in row.split("&")] for row in rows]
    condition = r"^(?:\\text\{ ?(?:if|for|when) ?\}|\b(?:if|for|when)\b) ?"
    return [[tight(re.sub(condition, "", tight(cell))) for cell in row.split("&")] for row in rows]


def _by_name(gold: str, answer: str, judge: Judge) -> bool | None:
    """A name with its value, which is worth the value alone: `x=5` and `5`."""
    wanted, said = sides(gold), sides(answer)
    if len(said) > 1 and len(listed(answer)) > 1:
        return False
    if any(_WORDS.search(part) for part in (*wanted[1:-1], *said[1:-1])):  # `x = 3 when y = 2`
        return False
    if any(not same(wanted[-1], part, judge) for part in said[1:-1]):  # `x = 6 = 5`
        return False
    if len(wanted) == 1:
        if len(said) == 1:
            return None
        is_itself = len(tight(said[0])) == 1 and said[0] in re.sub(r"\\[A-Za-z]+", "", gold)
        if is_itself:  # `x=x^2`
            return False
        return _may_stand_before(gold, said[0], judge) and same(gold, said[-1], judge)
    if not is_name(wanted[0]):
        if len(wanted) == 2 and is_name(wanted[1]):
            return same(f"{wanted[1]}={wanted[0]}", answer, judge)
        if is_measured(wanted[0]) and tight(said[0]) in (wanted[0], answer):
            return same(wanted[-1], said[-1], judge)
        return len(said) > 1 and _same_expression(gold, answer, judge)
    if len(said) == 1:
        return same(wanted[-1], answer, judge)
    is_turned = len(said) == 2 and tight(said[1]) == tight(wanted[0])  # `ma=F`
    if is_turned or (is_name(said[-1]) and not is_name(said[0])):
        said = said[::-1]
    if is_name(said[0]):
        return tight(wanted[0]) == tight(said[0]) and same(wanted[-1], said[-1], judge)
    if _is_without_names(said[0]):
        return judge(wanted[-1], said[0]) and same(wanted[-1], said[-1], judge)
    return read_number(tight(wanted[-1])) is None and judge(gold, answer)


def _may_stand_before(gold: str, text: str, judge: Judge) -> bool:
    """Return whether a value may be said of it: a name, or what is computed and comes to that."""
    return is_name(text) or (_is_without_names(text) and judge(gold, text))


def _is_without_names(text: str) -> bool:
    return not re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text))


_FORMS = (
    *(_by_choice, _by_words, _by_number, _by_approximation, _by_relation, _by_list),
    *(_by_brackets, _by_matrix, _by_name),
)
