"""The process behind `MathJudge`: a line of questions `[[gold, answer], ...]` in, as many times
`true` or `false` out.

Run as a file, so that it imports nothing of ours. Its owner keeps the time and kills it.

math-verify rounds at six decimal places and drops what is small. So constants are compared here to
many digits of their own size, and what it calls equal is tried with numbers for the variables.
"""

from __future__ import annotations

import json
import re
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
    from math_verify import verify  # what takes time, before the owner measures it

    print("ready", flush=True)
    for line in sys.stdin:
        pairs = json.loads(line)
        print(json.dumps([_answer(a, b, verify) for a, b in pairs]), flush=True)


def _answer(gold: str, answer: str, verify: Any) -> bool:
    try:
        return _is_equal(gold, answer, verify)
    except Exception:  # whatever sympy cannot compare, or has no memory for, is not equal
        return False


def _is_equal(gold: str, answer: str, verify: Any) -> bool:
    import sympy

    first, second = _one_kind(_read(gold), _read(answer))
    if all(isinstance(each, sympy.Expr) and not each.free_symbols for each in (first, second)):
        return _same_constant(first.doit(), second.doit(), answer)
    return bool(verify(first, second, timeout_seconds=None)) and _holds(first, second)


def _read(text: str) -> Any:
    """Return it as sympy has it. math-verify's own reader would take capitals for small letters,
    the end of what it cannot read for all of it, and the letters of `2ab` for a unit. Raises for
    what is no LaTeX."""
    import sympy
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from latex2sympy2_extended.math_normalization import normalize_latex
    from math_verify.grader import should_treat_as_complex

    latex = normalize_latex(text, NormalizationConfig(malformed_operators=True, nits=True))
    latex = re.sub(r"(\\[A-Za-z]+)|I", lambda found: found[1] or r"\Upsilon ", latex)  # a current
    found = latex2sympy(
        latex,
        is_real=not should_treat_as_complex(latex),
        normalization_config=None,
        conversion_config=ConversionConfig(lowercase_symbols=False),
    )
    named = _named(found) if isinstance(found, sympy.Basic) else found
    return sympy.nsimplify(named, rational=True) if isinstance(named, sympy.Expr) else named


def _one_kind(*sides: Any) -> list[Any]:
    """Return both, where names that are taken for real on one side only are so on neither."""
    import sympy

    parts = [side for side in sides if isinstance(side, sympy.Basic)]
    symbols = {symbol for part in parts for symbol in part.atoms(sympy.Symbol)}
    names = [symbol.name for symbol in symbols]
    change = {each: sympy.Symbol(each.name) for each in symbols if names.count(each.name) > 1}
    return [side.xreplace(change) if isinstance(side, sympy.Basic) else side for side in sides]


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
