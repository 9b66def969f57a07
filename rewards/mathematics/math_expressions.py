r"""Whether two expressions are equal, which a judge is asked; and where it may not be asked.

A judge is a function `(gold, answer) -> bool`, and math-verify in the end. It computes whatever an
answer leaves open, reads over marks that it does not know, and lets all factors change places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from rewards.mathematics.math_numbers import PERCENT, is_known, read_unit
from rewards.mathematics.math_writing import ROW_END, tight

Judge = Callable[[str, str], bool]
_FUNCTIONS = (
    r"!|\\binom", r"\\l?floor|\\lceil|\\lfloor", r"\\sum|\\prod|\\int|\\lim",
    r"\\(?:max|min|gcd|lcm|det|bmod|pmod|mod)|\bmod\b", r"\\a?(?:rc)?(?:sin|cos|tan|cot|sec|csc)",
    r"\\l(?:n|og|g)(?![a-z])", r"\\cdots|\\ldots|\.\.\.",
)  # fmt: skip
_BOUND = r"\s*(?:\{[^{}]*\}|\w)"
_PLUS = re.compile(r"(?<=[\w})!%\]])\s*[+-]")
_PRODUCT = re.compile(
    r"\d\s*(?:\\times|\\cdot|\*)\s*(?!10\^)(?!\d+\^\{?\(?(?:\d+/|\\frac))\d|(?<![\d_])\d+\s*\(-?\d+(?:\.\d+)?\)|\)\s*\(|\\div|\d\^\{?\d+\}?\s*(?:\\times|\\cdot)"
)

_VECTOR = r"\\(?:vec|overrightarrow)\s*(?:\{[^{}]*\}|\w)"
_UNDER = re.compile(
    r"/\s*(?:\d+(?:\.\d+)?|\\pi ?|(?!d[a-z])[A-Za-z])\s*"
    r"(?:[A-Za-z]+|\(|\\(?:pi|sqrt|frac|sin|cos|tan|ln|log|theta|alpha|beta|lambda)(?![A-Za-z]))"
)
_DROPPED = re.compile(
    rf"'|\^\{{?(?:T|\\top)(?![A-Za-z])|\\big[a-z]+(?:[_^]{_BOUND})*|{_VECTOR}\s*\\times\s*{_VECTOR}"
    r"|\\\{[^{},]*[A-Za-z][^{},]*\\\}|(?<!sqrt)\[[^\[\](),]*[A-Za-z][^\[\](),]*\]|\\langle|\|z\|"
    r"|\\(?:equiv|approx|sim|partial)(?![a-z])|[A-Z]\s*\\(?:times|cdot|wedge)\s*[A-Z]"
    r"|(?<![A-Za-z\\])[fghFGH](?=\()"
    r"|[A-Z]\[[^\]]*\](?:\^\{?\w+)?|!!|\\gamma(?![a-z])|\\nabla\s*(?:\\cdot(?![a-z])|\\times(?![a-z]))?"
)
"""what math-verify reads over: for it `x'` is `x`, `A^T` is `A`, a cross product any, and the whole
part `[x]` is `x`"""
_SAID = re.compile(r"\. |(?<![A-Za-z\\])[A-Za-z]{2,} (?=\w)")
"""words, which it would read as factors; and behind a full stop it reads the rest alone"""
_NO_PRODUCT = re.compile(r"(?<![_\d{])\d+ \d|\w:\w")
"""cycles and proportions"""
_LIMIT = re.compile(rf"\\lim\s*_{_BOUND}")
"""of a sequence such as `a_n` it is for sympy that name, wherever it goes"""
_TURN = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_TYPED_UNIT = re.compile(r"(.+?[\w})]) ((?:[A-Za-z]{2,}+(?:\^\{?\d\}?)?+\s*+[/*]?+\s*+)++)")
_CONSTANT = re.compile(r"(?<=\+)[cC]$|(?<![A-Za-z\\])[cC](?=_)")
"""of integration, with which nothing but variables stands"""
_COMMANDS = re.compile(r"\\(?:text|mathbb)\{[^{}]*\}|\\[A-Za-z]+|_\{[^{}]*\}|_\w")


def same_expression(gold: str, answer: str, judge: Judge) -> bool:
    """Asks the judge, where its answer would be the right one."""
    if _TURN.search(gold) and gold.count(r"\circ") != answer.count(r"\circ"):
        return False
    gold, unit = _without_unit(gold)
    answer, said = _without_unit(answer)
    if unit != said and ((unit and said) or PERCENT in (unit, said)):
        return False
    if not re.search(r"(?<![A-Za-z\\])[ab](?![A-Za-z])", gold):
        gold, answer = _CONSTANT.sub("C", gold), _CONSTANT.sub("C", answer)
    if gold == answer:
        return True
    if _NO_PRODUCT.search(gold) or _NO_PRODUCT.search(answer):
        return False
    if re.search(r"\\text\{", answer) or _leaves_open(gold, answer):
        return False
    if any(_SAID.search(text) for text in (gold, answer)):
        return False
    if _drops(gold) != _drops(answer) or _divides(gold) != _divides(answer):
        return False
    if _reorders(gold, answer):
        return False
    limits = [_LIMIT.findall(text) for text in (gold, answer)]
    if all(limits) and limits[0] != limits[1]:
        return False
    return judge(gold.replace(ROW_END, "\\\\"), answer.replace(ROW_END, "\\\\"))


def _divides(text: str) -> list[str]:
    """Return what stands under a line in one row and may go on or not: of `1/2x` the `/2x`."""
    found = [re.sub(r"\s", "", each[0]) for each in _UNDER.finditer(text)]
    return sorted(each for each in found if not is_known(each.lstrip("/0123456789.")))


def _drops(text: str) -> list[str]:
    return sorted(re.sub(r"[\s{}]", "", found[0]) for found in _DROPPED.finditer(text))


def _without_unit(text: str) -> tuple[str, str]:
    found = _TYPED_UNIT.fullmatch(text)
    if not found or not is_known(found[2]):
        found = re.fullmatch(
            r"(.+?)\s*((?:\\text\{[^{}]*\}(?:\^\{?\d\}?)?\s*[/*]?\s*)+|%|\^\\circ)", text
        )
    unit = read_unit(found[2]) if found else None
    is_scaled = unit is not None and unit[1] != 1  # of `\pi` million
    return (tight(found[1]), unit[0]) if found and unit and not is_scaled else (text, "")


def _leaves_open(gold: str, answer: str) -> bool:
    """Return whether the answer has a sum, a product or a function to compute that the reference
    has not. What has variables may be written in any way."""
    for function in _FUNCTIONS:
        if re.search(function, answer) and not re.search(function, gold):
            return True
    if re.search(r"[A-Za-df-hj-z]", re.sub(r"\\[A-Za-z]+", " ", gold)):
        return False
    return any(re.search(p, answer) and not re.search(p, gold) for p in (_PLUS, _PRODUCT))


def _reorders(gold: str, answer: str) -> bool:
    """Return whether letters changed places that may not, as far as it can be seen: factors in
    capitals, which may be matrices, and the letters of a word. Where something is divided, capitals
    are numbers."""
    texts = [_COMMANDS.sub(" ", re.sub(r"\\frac", "/", text)) for text in (gold, answer)]
    words = [re.sub(r"\s", "", text) for text in (gold, answer)]
    if all(re.fullmatch(r"[a-z]{3,}", word) for word in words):
        return words[0] != words[1]
    if "/" in texts[0] + texts[1]:
        return False
    wanted, said = (set(_orders(text)) for text in texts)
    return wanted != said and any(
        first != second and sorted(first) == sorted(second)
        for first in wanted
        for second in (*wanted, *said)
    )


def _orders(text: str) -> Iterator[tuple[str, ...]]:
    """The factors of each product that have capitals, by these, in their order: of `(A+B)C` it is
    `("AB", "C")`."""
    factors, inner, depth = list[str](), "", 0
    for letter in f"{text}+":
        if letter in "([{" or (depth and letter not in ")]}"):
            depth += letter in "([{"
            inner += letter
        elif depth:
            depth -= 1
            inner += letter
            if depth == 0:
                yield from _orders(inner[1:-1])
                factors += ["".join(sorted({*filter(str.isupper, inner)}))]
                inner = ""
        elif letter.isupper():
            factors.append(letter)
        elif letter in "+-=<>,;":
            if len(named := tuple(filter(None, factors))) > 1:
                yield named
            factors = []
