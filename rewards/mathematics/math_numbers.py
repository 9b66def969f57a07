r"""Numbers in any dress: `1,000`, `\$5`, `5\text{ cm}`, `50\%`, `3\frac{1}{2}`, `1.5e3`, `120_{3}`.

They are compared exactly. Two numbers are one answer if

- their values are equal, and a whole number is not left as a division: `10/2` is not `5`;
- no units contradict: a unit may be left out, and is never converted;
- they have the same base;
- where one is no finite decimal, the other may be its rounding to six digits or more.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Form = Literal["decimal", "fraction"]
MAX_EXPONENT = 3_000
MOST_LETTERS = 2_000
"""that a number may have; Python reads no more than 4,300 digits"""
_LEAST_DIGITS = 6
"""that a rounding must have"""
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.\d*)?|\.\d+)"
_REPEATING = rf"({_WHOLE}?)\.(\d*)(?:\\(?:overline|bar|dot)\{{(\d+)\}}|\((\d+)\))"
_POWER = r"(?:\\times|\\cdot|\*|x)10\^\{?([+-]?\d+)\}?|[eE]([+-]?\d+)(?![\d.])"
_PATTERNS = [
    (
        "mixed",
        re.compile(rf"({_WHOLE}) ?\\frac\{{(\d+)\}}\{{(\d+)\}}|({_WHOLE}) (\d+)/(\d+)(?![\d.])"),
    ),
    (
        "fraction",
        re.compile(rf"\\frac\{{(-?{_WHOLE})\}}\{{(-?{_WHOLE})\}}|({_WHOLE})/({_WHOLE})(?![\d.])"),
    ),
    ("repeating", re.compile(_REPEATING)),
    ("scientific", re.compile(rf"({_DECIMAL})(?:{_POWER})|10\^\{{?([+-]?\d+)\}}?")),
    ("decimal", re.compile(_DECIMAL)),
]
_CURRENCY = re.compile(r"([+-]?)\s*([¤€£¥₹]|Rs\.?|USD)\s*([+-]?)")
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16,
}  # fmt: skip
_IN_BASE = re.compile(
    r"(?:\\text\{)?([0-9A-Za-z]*\d[0-9A-Za-z]*)\}?"
    r"(?:_\{?(?:\\text\{)? ?(?:base[ -]?)?(\w+?)\}*"
    r"|(?:\\text\{)? ?\(?(?:in )?base[ -]\}?(\w+)\)?\}?)"
)
PERCENT = "%"
_SPELLINGS: Mapping[str, str] = {
    "m": "meter metre", "cm": "centimeter centimetre", "mm": "millimeter millimetre",
    "km": "kilometer kilometre", "in": "inch inches", "ft": "foot feet", "yd": "yard",
    "mi": "mile", "g": "gram gramme gm", "kg": "kilogram kilogramme kgs", "mg": "milligram",
    "lb": "pound lbs", "oz": "ounce", "t": "tonne", "s": "second sec", "min": "minute",
    "h": "hour hr", "day": "", "week": "", "month": "", "yr": "year", "ms": "millisecond",
    "L": "liter litre l", "mL": "milliliter millilitre ml", "gal": "gallon", "Hz": "hertz",
    "N": "newton", "J": "joule", "W": "watt", "V": "volt", "K": "kelvin", "Pa": "pascal",
    "A": "ampere amp", "mA": "milliampere", "mV": "millivolt", "kV": "kilovolt", "ohm": "",
    "nm": "nanometer nanometre", "um": "micrometer micrometre micron", "pm": "picometer",
    "us": "microsecond", "ns": "nanosecond", "eV": "electronvolt", "keV": "", "MeV": "",
    "GeV": "", "dB": "decibel", "T": "tesla", "kPa": "kilopascal", "MPa": "megapascal",
    "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "kN": "kilonewton",
    "uF": "microfarad", "pF": "picofarad", "uC": "microcoulomb", "nC": "nanocoulomb",
    "cal": "calorie", "kcal": "kilocalorie", "mM": "millimolar", "atm": "atmosphere",
    "kW": "kilowatt", "MW": "megawatt", "kJ": "kilojoule", "mol": "mole",
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
    "quadrillion": 10**15, "lakh": 10**5, "crore": 10**7, "dozen": 12,
}  # fmt: skip
_SCALE = re.compile(rf"\b(?:{'|'.join(_SCALES)})s?\b", re.IGNORECASE)
_NUMERALS = (
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|"
    r"nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|zero|point"
)
_ORDINALS = (
    r"halves|half|third|(?:n|four|fif|six|seven|eigh|nin|ten|eleven|twelf|(?:thir|four|fif|six|seven|"
    r"eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)tie|hundred|thousand|\w*illion)th|quarter"
)
_NO_UNITS = re.compile(
    rf"pi|sqrt|root|log|ln|lg|sin|cos|tan|exp|factorial|mod|or|and|not|no|to|infinity|over|base|"
    rf"(?:{_ORDINALS}|{_NUMERALS})s?|gross|score|bps|basis|less|more|fewer|greater|below|above|under|"
    rf"beyond|plus|minus|negative|minimum|maximum|least|most|something|ish|repeating|recurring|"
    rf"wrong|incorrect|false|(?:hundred|thousand|\w*illion)s?|permille|doubled|halved|tripled|"
    rf"rejected|extraneous|impossible|reciprocal|inverse|except|unless|complement|maybe|many|too|"
    rf"grand|nano|pico|tera|deci|centi|hecto|googol|ppm|square[ds]?|cube[ds]?|roots?|"
    rf"\w+fold|quadrupled|negated|opposite|inverted|upwards?|onwards?|higher|bigger|larger|"
    rf"smaller|lower|until|thru|between|roughly|versus|but|also|otherwise|etc|excluded|discarded|"
    rf"invalid|untrue|never|fails|nope|nothing|without|instead|"
    rf"short|percentiles?|fold|kilo|mega|giga|milli|micro|epsilon|arc(?:sin|cos|tan)|(?:sin|cos|tan)h"
)
"""words after a number that make another of it"""
_COUNTED = re.compile(
    r"(?:平方|立方)?(?:千|厘|毫|分|微)?米|千克|千瓦|公斤|(?:(?![不非错误或无和万千百亿十以上下左右多倍成折半打之的除外至到负加减乘及平]|次方)[\u4e00-\u9fff])+"
)
"""a Chinese unit, such as those of `12元` and `25个`"""
_TOKEN = re.compile(r"[A-Za-z]+|[\u4e00-\u9fff]+|[¤€£¥₹%/*]|\^\{?-?\d\}?")
_FRACTION = re.compile(r"\\frac\{((?:[^{}]|\{[^{}]*\})*)\}\{((?:[^{}]|\{[^{}]*\})*)\}")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    value: Fraction
    form: Form = "decimal"
    unit: str = ""
    digits: int = 0
    """that it shows, without leading zeros; 0: it is exact"""
    base: int = 0
    """that it names; 0: none"""
    numeral: str = ""
    """its digits in that base"""
    may_be_variable: bool = False
    """whether its unit is one letter right behind it"""


@functools.lru_cache(256)
def read_number(text: str) -> Number | None:
    """Read the number of a text in the one way of `math_writing.plain`; None if it is no number."""
    if len(text) > MOST_LETTERS:
        return None
    text = _unwrapped(text)
    if based := _in_base(text):
        return based
    currency = ""
    if found := _CURRENCY.match(text):
        currency = read_unit(found[2].strip("."))
        text = f"{found[1] or found[3]}{text[found.end() :]}"
        currency = currency[0] if currency else ""
    sign = -1 if text.startswith("-") else 1
    text = text[1:].lstrip() if text[:1] in ("+", "-") else text
    for kind, pattern in _PATTERNS:
        if found := pattern.match(text):
            value = _value(kind, found)
            return None if value is None else _with_unit(kind, found, sign * value, currency, text)
    return None


def same_number(gold: Number, said: Number) -> bool:
    """Return whether `said` is the answer `gold`."""
    if gold.base not in (0, 10):
        return (gold.base, gold.numeral) == (said.base, said.numeral)
    if said.base not in (0, 10) or _contradict(gold, said):
        return False
    for wanted, given in _readings(gold, said):
        is_left_open = wanted.denominator == 1 and said.form == "fraction" and not said.digits
        if wanted == given:
            return not is_left_open
        if _is_rounded(wanted, given, said.digits) or _is_rounded(given, wanted, gold.digits):
            return True
    return False


def _contradict(gold: Number, said: Number) -> bool:
    """Return whether their units do."""
    if said.may_be_variable and (not said.unit or said.unit != gold.unit):
        return True
    return (
        PERCENT not in (gold.unit, said.unit)
        and "" not in (gold.unit, said.unit)
        and (gold.unit != said.unit)
    )


def _readings(gold: Number, said: Number) -> list[tuple[Fraction, Fraction]]:
    """Pairs of values, of which one must be equal. A percent sign that only one of them has was
    left out, or the other one is the share: `50%` is `50` and `1/2`, and `0.5%` is not `0.5`."""
    if (gold.unit == PERCENT) == (said.unit == PERCENT):
        return [(gold.value, said.value)]
    if "" not in (gold.unit, said.unit):
        return []
    share = [
        (n.value / 100 if n.unit == PERCENT else n.value) for n in (gold, said)
    ]  # fmt: skip
    left_out = [(gold.value, said.value)] if abs(gold.value) > 1 else []
    return [(share[0], share[1]), *left_out]


def _is_rounded(exact: Fraction, shown: Fraction, digits: int) -> bool:
    """Return whether `shown` is a number without end, rounded to this many digits."""
    under = exact.denominator
    for prime in (2, 5):
        while under % prime == 0:
            under //= prime
    if digits < _LEAST_DIGITS or under == 1:
        return False
    return is_rounding(exact - shown, shown, digits)


def is_rounding(difference: Fraction, shown: Fraction, digits: int) -> bool:
    if not shown:
        return False
    exponent = len(str(int(abs(shown)))) if abs(shown) >= 1 else 0
    while abs(shown) < Fraction(10) ** (exponent - 1) and exponent > -MAX_EXPONENT:
        exponent -= 1
    return abs(difference) * 2 <= Fraction(10) ** (exponent - digits)


def _unwrapped(text: str) -> str:
    """Without what says that it is about equal, and without brackets around all of it."""
    text = text.removeprefix(r"\approx").strip()
    text = re.sub(
        r"^(?:about|approximately|exactly) ", "", re.sub(r"^\\text\{([^{}]*)\}$", r"\1", text)
    )
    return re.sub(r"^\(([^(),]*)\)$", r"\1", text.strip())


def _in_base(text: str) -> Number | None:
    found = _IN_BASE.fullmatch(text)
    if not found:
        return None
    named = found[2] or found[3]
    base = _BASES.get(named.lower()) or (int(named) if named.isdecimal() and len(named) < 3 else 0)
    try:
        value = Fraction(int(found[1], base)) if 2 <= base <= 36 else None
    except ValueError:
        return None
    numeral = found[1].upper().lstrip("0") or "0"
    return None if value is None else Number(value, base=base, numeral=numeral)


def _value(kind: str, found: re.Match[str]) -> Fraction | None:
    parts = [part.replace(",", "") for part in found.groups() if part]
    if kind == "mixed":
        whole, over, under = map(int, parts)
        return whole + Fraction(over, under) if under else None
    if kind == "fraction":
        over, under = map(int, parts)
        return Fraction(over, under) if under else None
    if kind == "repeating":
        whole, first, again = (found[1] or "0").replace(",", ""), found[2], found[3] or found[4]
        ended = Fraction(int(whole + first), 10 ** len(first))
        return ended + Fraction(int(again), 10 ** len(first) * (10 ** len(again) - 1))
    if kind == "decimal":
        return Fraction(_padded(found[0].replace(",", "")))
    exponent = int(parts[-1])
    if abs(exponent) > MAX_EXPONENT:
        return None
    return Fraction(_padded(parts[0]) if len(parts) > 1 else "1") * Fraction(10) ** exponent


def _padded(text: str) -> str:
    return f"0{text}0" if "." in text else text


def _with_unit(
    kind: str, found: re.Match[str], value: Fraction, currency: str, text: str
) -> Number | None:
    rest = text[found.end() :]
    if re.match(r"[\d.,_!(\\^]", rest) and not re.match(
        r"(?:\\frac\{)?\\text\{|\^\\circ|\\cdot *\\text|\(in |\( ?[a-z]|\\(?:mu|Omega)(?![a-z])",
        rest,
    ):
        return None
    read = read_unit(rest)
    if read is None or (currency and read[0] not in ("", currency)):
        return None
    is_attached = bool(rest) and rest[0].isalpha()
    if is_attached and not is_short(rest) and not is_known(rest):
        return None
    shown = found[0] if kind == "decimal" else found[1] or "" if kind == "scientific" else ""
    digits = len(re.sub(r"[.,]", "", shown).lstrip("0")) if "." in shown else 0
    form: Form = "fraction" if kind in ("mixed", "fraction") and not _is_whole(found) else "decimal"
    unit = currency or ("" if read[0].startswith("unit") else read[0])
    return Number(
        value * read[1], form, unit, digits, may_be_variable=is_attached and is_short(rest)
    )


def _is_whole(found: re.Match[str]) -> bool:
    """Return whether what stands below the line is 1."""
    return [part for part in found.groups() if part][-1] == "1"


def read_unit(text: str) -> tuple[str, Fraction] | None:
    """(the unit in one spelling, what the number is multiplied by); None where the text is no unit.

    Example: `\\text{ million dollars}` -> ("¤", 1000000)
    """
    text = re.sub(r"\\mu\s*(\\text\s*\{)?\s*", r"\1u", text).replace(r"\Omega", " ohm ")
    text = re.sub(r"\\text\{((?:[^{}]|\{[^{}]*\})*)\}", r" \1 ", _FRACTION.sub(r"\1/\2", text))
    text = text.replace(r"^\circ", " degree ").replace(r"\cdot", "*").replace("per cent", "%")
    text = re.sub(r"\bmph\b", "mi/h", re.sub(r"(?i)\bk(?:m?ph|mh)\b", "km/h", text))
    text = re.sub(r"(?i)\bu\.?s\.? dollars?\b", "dollars", text.replace("percentage points", "%"))
    tokens = _TOKEN.findall(text)
    if "".join(tokens).replace("-", "") != re.sub(r"[\s.()-]", "", text):
        return None
    if re.search(r"[-*/]\s*$", text):
        return None
    if text.strip().startswith("(") and _SCALE.search(text):
        return None  # `5 (thousands)` may be 5000 or 5
    scale = Fraction(1)
    while tokens and (factor := _SCALES.get(tokens[0].lower().removesuffix("s"))):
        scale *= factor
        del tokens[0]
    powers = _powers(tokens)
    if powers is None or powers[PERCENT] not in (0, 1):
        return None
    if powers.keys() & {"C", "F"}:
        del powers["degree"]
    return "·".join(
        f"{unit}^{n}" if n != 1 else unit for unit, n in sorted(powers.items()) if n
    ), scale


def is_short(text: str) -> bool:
    """Return whether it may as well be a variable: one letter right behind its number."""
    return re.fullmatch(r"[A-Za-z](?:\^\{?-?\d\}?)?", text) is not None


def is_known(text: str) -> bool:
    """Return whether every word in it is a unit or a scale that is known, so that none is a
    variable.
    """
    words = [token for token in _TOKEN.findall(text) if token.isalpha()]
    known = {**_KNOWN, **_SCALES, **_POWERS}
    return all(w in _KNOWN or w.lower() in known or _COUNTED.fullmatch(w) for w in words)


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
    if _COUNTED.fullmatch(word):
        return word
    if word in "%" or lower in ("percent", "pct"):
        return PERCENT
    if word in _KNOWN:
        return _KNOWN[word]
    is_prefixed = word[0] in "Mm" and 1 < len(word) < 4  # megahertz and millihertz
    if len(word) > 1 and lower in _KNOWN and not (is_prefixed and word[0] == "M"):
        return _KNOWN[lower]
    if is_prefixed and word[1:] in _KNOWN and not word.islower():
        return word
    if len(word) < 3 or _NO_UNITS.fullmatch(lower):
        return "" if lower in ("of", "in", "a", "an") else None
    return lower.removesuffix("s")
