r"""Formulas as they are typed without LaTeX, in LaTeX: `2*sin(x)**2` -> `2*\sin (x)^2`.

The name of a function counts where something stands behind it, that of a constant beside something
else, and neither where the text has other words: `beta`, `log in` and `5 sec` stay what they are.
"""

from __future__ import annotations

import re

ROW_END = "⏎"
"""stands for `\\\\`"""
_ARGUMENT = r"(?=\s*(?:[_^]\s*(?:\{[^{}]*\}|-?\w+)\s*)*[({|\\]|\s*[_^]?\s*\d|\s+\w|x(?![A-Za-z]))"
"""what a function is of, behind its powers; also that of `lnx`"""
_FUNCTION = (
    r"(?:(?:arc)?(?:sin|cos|tan|tg|ctg)|(?:sin|cos|tan|cot|sec|csc)h|cot|csc|ln|log|lg|exp|sqrt|cbrt|abs)"
    + _ARGUMENT
)
_SECANT = r"sec(?=\s*(?:\^\s*\{?\d\}?\s*)?(?:\(|\\|[txyz](?![A-Za-z])))"
"""no seconds"""
_INFINITY = r"(?:inf|infinity|oo)(?!\s*[A-Za-z_({])"
"""no lower bound, as of `inf A`"""
_CONSTANT = (
    rf"(?:(?:pi|theta|alpha|beta|gamma|delta|lambda|mu|sigma|phi|omega)(?![A-Za-z])|{_INFINITY})"
)
_NAME = re.compile(rf"(?<![A-Za-z\\])(?:{_FUNCTION}|{_SECANT}|{_CONSTANT})")
_MARKED = re.compile(r"\\text\s*\{\s*([a-z]+)\s*\}")
"""a name in `\\operatorname{...}` or `\\mathrm{...}`"""
_TEXT = r"\\text\s*\{[^{}]*\}"
_COMMAND = re.compile(rf"{_TEXT}|\\[A-Za-z]+")
_TEXT_OR_NAME = re.compile(rf"{_TEXT}|{_NAME.pattern}")
_WORD = re.compile(r"[A-Za-z]{3,}|\b(?:in|on|of|to|is|it|at|as|an|by|up|no|if|so)\b")
_INFINITE = dict.fromkeys(("inf", "infinity", "oo"), "infty")
_SAME = {"lg": r"\log_{10}", "tg": r"\tan ", "ctg": r"\cot ", "arctg": r"\arctan "}
_OTHER_NAME = re.compile(rf"\\({'|'.join(_SAME)})(?![A-Za-z])")
_NEGATIVE = re.compile(r"\s*-\s*\(\s*(\d+(?:\.\d+)?(?:/\d+)?)\s*\)\s*")
_CALL = re.compile(r"\\(sqrt|cbrt|abs)\s*(\[\d+\])?\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_SIGNED = re.compile(r"\^\s*([-+](?:\d+(?:\.\d+)?(?! ?\d)|[A-Za-z](?![A-Za-z])|\\[A-Za-z]+))")
_LOGARITHM = re.compile(r"(?<![A-Za-z\\])log(2|10)(?=\s*\()")
_NATURAL = re.compile(r"\\log\s*_\s*(?:e(?![A-Za-z])|\{\s*e\s*\})")
_BRACKETED_POWER = re.compile(r"\^\s*\(\s*([-+]?\w+)\s*\)")
_MATHEMATICA = re.compile(r"\bSqrt\[([^\[\]]*)\]|(?<![A-Za-z\\])Pi(?![A-Za-z])")
_RATIONAL = re.compile(r"\b(?:Rational|Fraction)\(\s*(-?\d+)\s*,\s*(\d+)\s*\)")
_CHOOSE = re.compile(r"\{\s*([^{}]+?)\s*\\choose\s*([^{}]+?)\s*\}|\\binom\s*(\w)\s*(\w)(?!\w)")
_REPEATED = re.compile(r"(\.\d*?)(?:(\d)\2\2+|(?<=\.)(\d+)\3+)\.\.\.")
"""`0.1666...`, and `0.142857142857...`"""
_ROWS = re.compile(r"\s*\[\s*(\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])*)\s*\]\s*")
_ROW_ENDS = re.compile(r"\]\s*,\s*\[")
_UNION = re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])")
_MODULO = re.compile(
    r"\s*(?:\(\s*(?:\\[bp]?)?mod\s*(\w+)\s*\)|(?:\\[bp]?|\b)mod\s*(?:\{\s*(\w+)\s*\}|(\w+)))\s*$"
)


def typeset(text: str) -> str:
    """Return it with commands for names, `\\cup` for `U`, and signed powers in braces."""
    if negative := _NEGATIVE.fullmatch(text):
        return f"-{negative[1]}"
    if rows := _ROWS.fullmatch(text):
        cells = _ROW_ENDS.sub(ROW_END, rows[1][1:-1]).replace(",", "&")
        return rf"\begin{{pmatrix}}{cells}\end{{pmatrix}}"
    text = _REPEATED.sub(lambda found: rf"{found[1]}\overline{{{found[2] or found[3]}}}", text)
    text = _MATHEMATICA.sub(lambda f: r"\pi " if f[1] is None else rf"\sqrt{{{f[1]}}}", text)
    text = _RATIONAL.sub(r"\\frac{\1}{\2}", _BRACKETED_POWER.sub(r"^{\1}", text))
    text = _CHOOSE.sub(_binomial, text)
    text = _SIGNED.sub(r"^{\1}", _UNION.sub(r" \\cup ", text))
    text = _MODULO.sub(lambda found: rf" \pmod{{{found[1] or found[2] or found[3]}}}", text)
    text = _names(_LOGARITHM.sub(r"\\log_{\1}", text))
    text = _OTHER_NAME.sub(lambda found: _SAME[found[1]], _NATURAL.sub(r"\\ln ", text))
    return _CALL.sub(_called, text)


def _names(text: str) -> str:
    bare = _MARKED.sub(_unmarked, text)
    is_word = _NAME.fullmatch(bare.strip()) and bare.strip() not in _INFINITE
    if is_word or _WORD.search(_NAME.sub(" ", _COMMAND.sub(" x ", bare))):
        return text
    return _TEXT_OR_NAME.sub(_command, bare)


def _command(found: re.Match[str]) -> str:
    name = found[0]
    return name if name.startswith("\\") else rf"\{_INFINITE.get(name, name)} "


def _unmarked(found: re.Match[str]) -> str:
    return f" {found[1]} " if _NAME.match(f"{found[1]} x") else found[0]


def _binomial(found: re.Match[str]) -> str:
    over, under = (part for part in found.groups() if part)
    return rf"\binom{{{over}}}{{{under}}}"


def _called(found: re.Match[str]) -> str:
    name, root, inner = found.groups()
    if name == "abs":
        return f"|{inner}|"
    return rf"\sqrt{'[3]' if name == 'cbrt' else root or ''}{{{inner}}}"
