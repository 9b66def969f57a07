"""The process behind `MathJudge`: a line of questions `[[gold, answer], ...]` in, as many times
`true` or `false` out.

Run as a file, so that it imports nothing of ours. Its owner keeps the time and kills it.

math-verify rounds at six decimal places and drops what is small. So constants are compared here to
many digits of their own size, and what it calls equal is tried with numbers for the variables.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

MEMORY_LIMIT = 2 << 30
"""bytes of address space"""
DIGITS = 50
"""to which constants are computed"""
_LEAST_DIGITS = 6
"""that a decimal must have, to stand for a number without end"""
_POINTS = ((7, 3), (11, 13), (5, 19), (23, 17), (3, 29), (31, 37))
"""what is put in for variables, as fractions"""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    from math_verify import parse, verify  # what takes time, before the owner measures it

    print("ready", flush=True)
    for line in sys.stdin:
        pairs = json.loads(line)
        print(json.dumps([_answer(a, b, parse, verify) for a, b in pairs]), flush=True)


def _answer(gold: str, answer: str, parse: Any, verify: Any) -> bool:
    try:
        return _is_equal(gold, answer, parse, verify)
    except Exception:  # whatever sympy cannot compare, or has no memory for, is not equal
        return False


def _is_equal(gold: str, answer: str, parse: Any, verify: Any) -> bool:
    import sympy

    golds, answers = (_read(text, parse) for text in (gold, answer))
    if not golds or not answers:
        return False
    golds, answers = _one_kind(golds, answers)
    first, second = golds[0], answers[0]
    if all(isinstance(each, sympy.Expr) and not each.free_symbols for each in (first, second)):
        return _same_constant(first.doit(), second.doit(), answer)
    return bool(verify(golds, answers, timeout_seconds=None)) and _holds(first, second)


def _read(text: str, parse: Any) -> list[Any]:
    """Units were read before: math-verify would take the letters of `2ab` for one and drop them."""
    import sympy
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    writing = NormalizationConfig(malformed_operators=True, nits=True)
    forms = [LatexExtractionConfig(normalization_config=writing), ExprExtractionConfig()]
    found = parse(f"\\boxed{{{text}}}", forms, parsing_timeout=None)  # its alarm is off
    named = [_named(each) if isinstance(each, sympy.Basic) else each for each in found]
    return [
        sympy.nsimplify(each, rational=True) if isinstance(each, sympy.Expr) else each
        for each in named
    ]


def _one_kind(*sides: list[Any]) -> list[list[Any]]:
    """Names that math-verify takes for real on one side only are so on neither."""
    import sympy

    parts = [part for side in sides for part in side if isinstance(part, sympy.Basic)]
    symbols = {symbol for part in parts for symbol in part.atoms(sympy.Symbol)}
    names = [symbol.name for symbol in symbols]
    change = {each: sympy.Symbol(each.name) for each in symbols if names.count(each.name) > 1}
    return [
        [part.xreplace(change) if isinstance(part, sympy.Basic) else part for part in side]
        for side in sides
    ]


def _named(found: Any) -> Any:
    """With a name for each derivative, as sympy takes that of `y` by `x` for 0; with the imaginary
    unit for a free `i`; and without factors of 1, which sympy keeps as they were written."""
    import sympy

    named = found.replace(
        lambda part: isinstance(part, sympy.Derivative),
        lambda part: sympy.Symbol(f"derivative {part}", real=True),
    )
    units = {each: sympy.I for each in named.free_symbols if each.name == "i"}
    return named.xreplace(units).replace(
        lambda part: isinstance(part, (sympy.Add, sympy.Mul, sympy.Pow)),
        lambda part: part.func(*part.args),
    )


def _same_constant(exact: Any, said: Any, written: str) -> bool:
    """Return whether they are equal, or what was written is a rounding to six digits or more."""
    import sympy

    if exact == said or (exact.is_Rational and said.is_Rational):
        return bool(exact == said)
    first, second = (sympy.N(each, DIGITS) for each in (exact, said))
    if abs(first - second) < max(abs(first), abs(second)) * 10 ** (10 - DIGITS):
        return True
    whole, point, places = written.strip("+-").partition(".")
    if not (
        f"{whole}{places}".isdecimal() and len(f"{whole}{places}".lstrip("0")) >= _LEAST_DIGITS
    ):
        return False
    return bool(point) and bool(abs(first - second) * 2 <= sympy.Rational(1, 10 ** len(places)))


def _holds(gold: Any, answer: Any) -> bool:
    """Return whether two expressions are equal at points as well; what is no expression is not
    tried.
    """
    import sympy

    if gold == answer or not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return True
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    for shift in range(3):
        point: Any = {
            symbol: sympy.Rational(*_POINTS[(at + shift) % len(_POINTS)]) + at // len(_POINTS)  # pyrefly: ignore[unsupported-operation]
            for at, symbol in enumerate(symbols)
        }
        first, second = (sympy.N(each.subs(point).doit(), DIGITS) for each in (gold, answer))
        size = max(abs(first), abs(second))
        if not (size == 0 or abs(first - second) < size * 10 ** (10 - DIGITS)):
            return False
    return True


if __name__ == "__main__":
    main()
