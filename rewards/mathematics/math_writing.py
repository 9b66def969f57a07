r"""One way to write what LaTeX and Unicode can write in many: `\dfrac12`, `½` -> `\frac{1}{2}`.

Nothing here changes what a text denotes. Texts in `\text{...}` stay marked as such, because words
are units and names, and other letters are variables. `¤` stands for a dollar.
"""

from __future__ import annotations

import functools
import re
import unicodedata

from infra.shown_text import normal_form
from rewards.mathematics.math_typed import ROW_END, typeset

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_NAMES = {
    **dict(zip("αβγδελμσφωτρηκνξψζθ", (
        *("alpha", "beta", "gamma", "delta", "epsilon", "lambda", "mu", "sigma", "phi", "omega"),
        *("tau", "rho", "eta", "kappa", "nu", "xi", "psi", "zeta", "theta"),
    ), strict=True)),
    **dict(zip("ΘΔΣΩΓΛΦΨΠµ", (
        *("Theta", "Delta", "Sigma", "Omega", "Gamma", "Lambda", "Phi", "Psi", "Pi", "mu"),
    ), strict=True)),
    **dict(zip("∩∠△→∑∫⊥∥⊂⊆∀∃∧∨¬", (
        *("cap", "angle", "triangle", "to", "sum", "int", "perp", "parallel", "subset"),
        *("subseteq", "forall", "exists", "wedge", "vee", "neg"),
    ), strict=True)),
}  # fmt: skip
_SYMBOLS = {
    **dict.fromkeys("−–—‒﹣－‐‑", "-"),
    **dict.fromkeys("·⋅∙", r"\cdot "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    "×": r"\times ",
    "÷": r"\div ",
    "√": r"\sqrt ",
    "∛": r"\sqrt[3]",
    "∜": r"\sqrt[4]",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "±": r"\pm ",
    "≈": r"\approx ",
    "°": r"^\circ ",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    **dict.fromkeys("⩾≧", r"\ge "),
    **dict.fromkeys("⩽≦", r"\le "),
    **{sign: rf"\mathbb{{{name}}}" for sign, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
    **{sign: rf"\{name} " for sign, name in _NAMES.items()},
    "、": ",",
    "。": ".",
    "¢": r"\text{ cent}",
    "″": "''",
    "′": "'",
}
_TRANSLATED = str.maketrans(_SYMBOLS)
_COMMANDS = {
    **dict.fromkeys(("left", "right", "displaystyle", "textstyle", "limits", "bf", "rm", "it"), ""),
    **dict.fromkeys(("bigl", "bigr", "Bigl", "Bigr", "big", "Big", "bigg", "Bigg"), ""),
    **dict.fromkeys(("quad", "qquad", "thinspace", "enspace", "newline"), " "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac"),
    "varepsilon": r"\epsilon",
    "leq": r"\le",
    "leqslant": r"\le",
    "geq": r"\ge",
    "geqslant": r"\ge",
    "neq": r"\ne",
    "mid": "|",
    "vert": "|",
    "lvert": "|",
    "rvert": "|",
    "lt": "<",
    "gt": ">",
    "varnothing": r"\emptyset",
    "degree": r"^\circ",
    "colon": ":",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "ast": "*",
    "infin": r"\infty",
    "lbrack": "[",
    "rbrack": "]",
    "thickapprox": r"\approx",
    "iff": r"\iff",
    **dict.fromkeys(("ldots", "dots"), "..."),
    **dict.fromkeys(("Large", "large", "LARGE", "huge", "Huge", "normalsize", "therefore"), ""),
    "pounds": "£",
    "euro": "€",
    "textdollar": "¤",
    "land": r"\text{ and }",
    "lor": r"\text{ or }",
    "vee": r"\text{ or }",
    "wedge": r"\text{ and }",
}
_FONTS = (
    *("mathbf", "boldsymbol", "bm", "pmb", "mathit", "mathsf", "mathtt", "mathnormal", "bold"),
    *("ensuremath", "underline", "boxed", "fbox", "displaystyle", "mathstrut"),
)
_TEXTS = (
    *("textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mbox", "hbox", "mathrm"),
    *("operatorname", "textup", "emph"),
)
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_ARROW = r"\\(?:mathbf|boldsymbol|bm|hat|vec)\s*\{?\s*([A-Za-z])\s*\}?"
_CROSS = re.compile(rf"{_ARROW}\s*\\times\s*{_ARROW}")
"""a product of vectors, however they are marked"""
_ANGLES = re.compile(r"\\langle((?:(?!\\rangle).)*?,.*?)\\rangle")
"""around a tuple; of one thing they are a mean"""
_SAYS = re.compile(r"\s*(?:故答案[为是]|答案[为是]?|故?选|应选|答)\s*:?\s*(?=[^\u4e00-\u9fff\s:])")
_JOINED = re.compile(r"(?<=[\w)}])\s*([或和])\s*(?=[\w(\\-])", re.ASCII)
_CIRCLED = re.compile("[①-⑳]")
_STATEMENTS = re.compile(r"(?:[①-⑳][\s,和]*)+")
_FONT = re.compile(rf"\\(?:{'|'.join(_FONTS)})\s*\{{([^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*)\}}")
_TEXT = re.compile(rf"\\(?:{'|'.join(_TEXTS)})\s*\{{")
_INNER_TEXT = re.compile(r"\\text\s*\{((?:[^{}]|\\[{}])*)\\text\s*\{([^{}]*)\}")
_LONE_LETTER = re.compile(r"\\text\s*\{\s*([eidπ])\s*\}")
_BY = re.compile(r"(?<=\d)(?<!\b0)\s*(?:\\text\s*\{\s*(?:by|x)\s*\}|\bby\b|[xX])\s*(?=\d)")
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?(?![A-Za-z])")
_SPACES = re.compile(r"\\[,;:> \n]|~|\\hspace\*?\{[^{}]*\}|\s+")
_SHORT_FRACTION = re.compile(
    r"\\frac\s*(\d|[A-Za-z]|\\(?!frac|sqrt|text)[A-Za-z]+|\{[^{}]*\})\s*"
    r"(\d|[A-Za-z](?![A-Za-z])|\\(?!frac|sqrt|text)[A-Za-z]+|\{[^{}]*\})"
)
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\[\d\])?\s*(\d+|[A-Za-z](?![A-Za-z]))")
_PRIMES = re.compile(r"\^\s*(?:\\prime(?![a-z])|\{\s*(?:\\prime\s*)+\})")
_DELIMITERS = re.compile(
    r"\\[()\[\]]|(?<![\w)}\]])\*\*(?=\S)|(?<=\S)\*\*(?![-+({\\\w])|`"  # but not `x**2`
)
_LOOSE = re.compile(
    r"(?<![0-9A-Za-z}%.])(?!(?<=\d,) [1-9]\d\d(?!\d)) "  # nor that of a list such as `1, 200`
    r"| (?![0-9A-Za-z.])|(?<=[}%.]) (?![A-Za-z0-9\\])"
)
_COMMAND_SPACE = re.compile(r"(\\[A-Za-z]+) (?![A-Za-z])")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?! ?[\d/])(?!\s*\\frac)")


@functools.lru_cache(256)  # a group's answers share a reference, and often their own text
def plain(text: str) -> str:
    """The text in one way of writing, without the white space that means nothing."""
    text = _SAYS.sub("", _ascii(text)).replace("\\\\", ROW_END)
    text = text.replace(r"\$", "¤").replace("{,}", ",")
    text = re.sub(r"\\!\s*", "", text).replace(r"\%", "%").replace(r"\#", "#").replace(r"\&", "&")
    text = _CROSS.sub(r"\\vec{\1}\\times\\vec{\2}", _COLOUR.sub("", _money(text)))
    text = _TEXT.sub(r"\\text{", _DELIMITERS.sub(" ", text))
    for _ in range(4):
        text = _FONT.sub(r"\1", _INNER_TEXT.sub(r"\\text{\1\2", text))
    text = _COMMAND.sub(lambda found: _COMMANDS.get(found[1], found[0]), text)
    text = _BY.sub(r"\\times ", _LONE_LETTER.sub(r"\1", _ANGLES.sub(r"(\1)", text)))
    text = _SPACES.sub(" ", text).replace(r"\text{-}", "-").replace("**", "^")
    text = typeset(text)
    for _ in range(3):
        text = _SHORT_FRACTION.sub(_fraction, text)
        text = _SHORT_ROOT.sub(r"\\sqrt\1{\2}", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", r"^\\circ", text)
    text = _PRIMES.sub(lambda found: "'" * found[0].count("p"), text)
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ")
    text = re.sub(r"\+\s*\\infty", r"\\infty", text)
    text = re.sub(r"\\\{\s*\\\}|\{\s*\\emptyset\s*\}", r"\\emptyset", text)
    return tight(text if r"\begin{" in text else text.replace(ROW_END, " "))


def tight(text: str) -> str:
    """Return the text without white space at its ends and around signs, and without a full stop
    after it."""
    before = None
    while text != before:
        before = text
        text = text.strip().removesuffix(ROW_END).rstrip()
        text = (
            text[:-1] if text.endswith((".", ";", ",", "\\")) and not text.endswith("...") else text
        )
        text = _outer_braces(text)
    text = _GROUPED.sub(lambda found: found[0].replace(" ", ""), text)
    return _LOOSE.sub("", _COMMAND_SPACE.sub(r"\1", text))


def unmarked(text: str) -> str:
    r"""Without the marks `\text{...}`; what stood in them stays."""
    return " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).split())


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda f: f"^{{{f[0].translate(_SUPERSCRIPTS)}}}", text)
    text = re.sub("[₀-₉]+", lambda f: f"_{{{f[0].translate(_SUBSCRIPTS)}}}", text)
    if _STATEMENTS.fullmatch(text.strip()):
        text = ",".join(_CIRCLED.findall(text))
    text = _CIRCLED.sub(lambda found: rf"\text{{no{ord(found[0]) - ord('①') + 1}}}", text)
    text = "".join(
        f" {c}" if unicodedata.decomposition(c).startswith("<fraction>") else c for c in text
    )
    text = normal_form("NFKC", text.translate(_TRANSLATED))
    text = _JOINED.sub(lambda found: " or " if found[1] == "或" else " and ", text)
    return text.replace("\u2044", "/").replace("\u2212", "-")


def _money(text: str) -> str:
    """Dollars that are delimiters of formulas come in pairs; one alone is money."""
    if text.count("$") % 2 == 0:
        return text.replace("$", " ")
    first, _, rest = text.partition("$")
    return (
        f"{first}¤{rest.replace('$', ' ')}" if re.match(r"\s*-?[\d.]", rest) else f"{first}{rest}"
    )


def _fraction(found: re.Match[str]) -> str:
    over, under = (part if part.startswith("{") else f"{{{part}}}" for part in found.groups())
    return rf"\frac{over}{under}"


def _outer_braces(text: str) -> str:
    """Return it without braces around all of it; those of a program's set become a set's."""
    if not (text.startswith("{") and text.endswith("}")):
        return text
    depth = 0
    for at, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0 and at < len(text) - 1:
            return text
    is_set = "," in text and not re.fullmatch(r"\{\d{1,3}(?:,\d{3})+\}", text)
    return rf"\{{{text[1:-1]}\}}" if is_set else text[1:-1]
