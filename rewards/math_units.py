"""Units that stand beside a number, in one spelling: `square meters`, `m^2` -> `m^2`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

PERCENT = "%"
_SPELLINGS: Mapping[str, str] = {
    "m": "meter metre", "cm": "centimeter centimetre", "mm": "millimeter millimetre",
    "km": "kilometer kilometre", "in": "inch inches", "ft": "foot feet", "yd": "yard",
    "mi": "mile", "g": "gram gramme gm", "kg": "kilogram kilogramme kgs", "mg": "milligram",
    "lb": "pound lbs", "oz": "ounce", "t": "tonne", "s": "second sec", "min": "minute",
    "h": "hour hr", "day": "", "week": "", "month": "", "yr": "year", "ms": "millisecond",
    "L": "liter litre l", "mL": "milliliter millilitre ml", "gal": "gallon", "Hz": "hertz",
    "N": "newton", "J": "joule", "W": "watt", "V": "volt", "K": "kelvin", "Pa": "pascal",
    "A": "ampere amp", "kW": "kilowatt", "MW": "megawatt", "kJ": "kilojoule", "mol": "mole",
    "rad": "radian", "¤": "dollar usd buck", "€": "euro eur",
    "£": "gbp", "¥": "yen jpy", "₹": "rupee rs", "cent": "", "degree": "deg", "C": "celsius",
    "F": "fahrenheit", "unit": "",
}  # fmt: skip
_KNOWN = {
    spelling: unit
    for unit, others in _SPELLINGS.items()
    for name in (unit, *others.split())
    for spelling in ({name, f"{name}s"} if len(name) > 1 else {name})
}
_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12,
}  # fmt: skip
_NO_UNITS = re.compile(
    r"pi|sqrt|root|log|ln|lg|sin|cos|tan|exp|factorial|mod|or|and|not|no|to|infinity|over|base|half|"
    r"halves|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?"
)
"""words after a number that make another of it"""
_TOKEN = re.compile(r"[A-Za-z]+|[¤€£¥₹%/*]|\^\{?-?\d\}?")
_FRACTION = re.compile(r"\\frac\{((?:[^{}]|\{[^{}]*\})*)\}\{((?:[^{}]|\{[^{}]*\})*)\}")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}


def read_unit(text: str) -> tuple[str, Fraction] | None:
    """(the unit in one spelling, what the number is multiplied by); None where the text is no unit.

    Example: `\\text{ million dollars}` -> ("¤", 1000000)
    """
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", _FRACTION.sub(r"\1/\2", text))
    text = text.replace(r"^\circ", " degree ").replace(r"\cdot", "*").replace("per cent", "%")
    text = re.sub(r"\bmph\b", "mi/h", re.sub(r"(?i)\bk(?:m?ph|mh)\b", "km/h", text))
    text = re.sub(r"(?i)\bu\.?s\.? dollars?\b", "dollars", text.replace("percentage points", "%"))
    tokens = _TOKEN.findall(text)
    if "".join(tokens).replace("-", "") != re.sub(r"[\s.()-]", "", text):
        return None
    scale = Fraction(1)
    while tokens and tokens[0].lower() in _SCALES:
        scale *= _SCALES[tokens.pop(0).lower()]
    powers = _powers(tokens)
    if powers is None:
        return None
    if powers.keys() & {"C", "F"}:
        del powers["degree"]
    return "·".join(
        f"{unit}^{n}" if n != 1 else unit for unit, n in sorted(powers.items()) if n
    ), scale


def is_short(text: str) -> bool:
    """Whether it may as well be a variable: one letter right behind its number."""
    return re.fullmatch(r"[A-Za-z](?:\^\{?-?\d\}?)?", text) is not None


def is_known(text: str) -> bool:
    """Whether every word in it is a unit or a scale that is known, so that none is a variable."""
    words = [token for token in _TOKEN.findall(text) if token.isalpha()]
    return all(word in _KNOWN or word.lower() in {**_KNOWN, **_SCALES, **_POWERS} for word in words)


def _powers(tokens: list[str]) -> Counter[str] | None:
    powers, sign, power, last = Counter[str](), 1, 1, ""
    for token in tokens:
        lower = token.lower()
        if token in "/*" or lower == "per":
            sign = 1 if token == "*" else -1
        elif token.startswith("^") or lower in ("squared", "cubed"):
            raised = _POWERS.get(lower) or int(token.strip("^{}"))
            if not last:
                return None
            powers[last] += (raised - 1) * (1 if powers[last] > 0 else -1)
        elif lower in _POWERS:
            power = _POWERS[lower]
        else:
            unit = _one(token)
            if unit is None:
                return None
            powers[unit] += sign * power
            power, last = 1, unit
    return powers


def _one(word: str) -> str | None:
    lower = word.lower()
    if word in "%" or lower in ("percent", "pct"):
        return PERCENT
    known = _KNOWN.get(word) or (_KNOWN.get(lower) if len(word) > 1 else None)
    if known:
        return known
    if len(word) < 3 or _NO_UNITS.fullmatch(lower):
        return "" if lower in ("of", "in", "a", "an") else None
    return lower.removesuffix("s")
