"""Constraints on what a reply holds: numbers, dates, addresses, choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import prod

from infra.prose.plain_text import QUOTES, without_mark, words_of
from infra.prose.sentence_ends import sentences_of
from rewards.constraints.bounds import NONE, bounded

_COUNTED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""letters beside which numbers stand without a space, e.g. `3월` and `2024年`"""
_BEGIN, _END = rf"(?:(?<![\w.,-])|(?<={_COUNTED}))", rf"(?!(?!{_COUNTED})\w|[.,]\d)"
_NUMBER = re.compile(rf"{_BEGIN}-?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?{_END}")
_ISO_DATE = re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)(?!\d)")
_CLOCK = re.compile(r"(?<![\d:])(\d\d):(\d\d)(?![\d:])")
_YEAR = re.compile(rf"{_BEGIN}(?:1[0-9]{{3}}|20[0-9]{{2}}){_END}")
_NO_URL = re.compile(r"[\s<>()\[\]\"'`*]+")
_URL = re.compile(r"https?://[\w-]+(?:\.[\w-]+)+", re.IGNORECASE)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+(?![\w-])")
_HASHTAG = re.compile(r"(?<![\w#&])#[^\W\d_]\w*")
_MENTION = re.compile(r"(?<![\w@.])@[^\W\d_]\w*")
_SPACE = "[ \u00a0\u202f]?"
_PERCENT = re.compile(rf"(?<![\w.])\d+(?:\.\d+)?{_SPACE}%")
_HEX_COLOUR = re.compile(r"(?<![\w#])#[0-9a-fA-F]{6}(?!\w)")
_VERSION = re.compile(r"(?<![\w.])[vV]?\d+\.\d+\.\d+(?!\w|\.\d)")
_ROMAN = re.compile(r"\bM{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})\b")
_RANGE = re.compile(r"(?<=\d)[-–](?=\d)")
_LISTED = re.compile(r"(?<=\d),(?=\d)(?!\d{3}(?!\d))")
_EQUATION = re.compile(
    r"(?<![\w.])(-?\d{1,15}(?: ?[-+*] ?-?\d{1,15}){1,20}) ?= ?(-?\d{1,15})(?!\w|[.,]\d)"
)
_TERM = re.compile(r"([-+]?) ?(-?\d+(?: ?\* ?-?\d+)*)")
_FIRST_PERSON = frozenset(
    {"i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "ourselves"}
)
_SECOND_PERSON = frozenset({"you", "your", "yours", "yourself", "yourselves"})


def one_of(reply: str, *, options: Sequence[str]) -> bool:
    """The reply is one of the options and nothing else."""
    return reply.strip() in options


def holds_one_of(reply: str, *, options: Sequence[str]) -> bool:
    """The reply contains one of the options, to the letter."""
    return any(option in reply for option in options)


def chosen_letter(reply: str, *, letters: str, before: str = "Answer: ") -> bool:
    """The last line is e.g. `Answer: B`, with one of the letters."""
    last = reply.strip().splitlines()[-1:] or [""]
    return last[0].strip() in [f"{before}{letter}" for letter in letters]


def yes_or_no(reply: str) -> bool:
    """The first word is yes or no, and the other one does not occur."""
    found = [word.lower() for word in words_of(without_mark(reply))]
    first = found[0] if found else ""
    return first in ("yes", "no") and ({"yes": "no", "no": "yes"}[first] not in found)


@bounded
def numbers(reply: str) -> int:
    """How many numbers in digits there are."""
    return len(_numbers(reply))


def only_number(reply: str) -> bool:
    """The reply is one number in digits and nothing else."""
    return _NUMBER.fullmatch(reply.strip()) is not None


def number_between(reply: str, *, low: float, high: float) -> bool:
    """At least one number is within the two, and none is outside."""
    found = _only_numbers(reply)
    return bool(found) and all(Decimal(str(low)) <= n <= Decimal(str(high)) for n in found)


def growing_numbers(reply: str) -> bool:
    """Each of at least two numbers is larger than the one before it."""
    found = _only_numbers(reply)
    return len(found) > 1 and all(first < second for first, second in pairwise(found))


def sum_of_numbers(reply: str, *, total: float) -> bool:
    """The numbers, at least two, add up to the total."""
    found = _only_numbers(reply)
    return len(found) > 1 and sum(map(Fraction, found)) == Fraction(str(total))


def even_numbers(reply: str) -> bool:
    """There are numbers, and all are even."""
    found = _only_numbers(reply)
    return bool(found) and all(_is_even(number) for number in found)


@bounded
def right_equations(reply: str) -> float:
    """How many equations of whole numbers such as `2 + 3 = 5` there are; with a wrong one, or any
    other, no bound holds."""
    lines = [without_mark(line) for line in reply.replace("\u2212", "-").splitlines()]
    text = re.sub(r"(?<=[\d ])[×x](?=[\d ])", "*", "\n".join(lines))
    found = _EQUATION.findall(text)
    is_all = len(found) == text.count("=")
    return len(found) if is_all and all(_is_right(*parts) for parts in found) else NONE


@bounded
def iso_dates(reply: str) -> int:
    """How many dates such as `2026-03-01` there are that the calendar has."""
    return sum(_exists(date, match) for match in _ISO_DATE.findall(reply))


@bounded
def clock_times(reply: str) -> int:
    """How many times such as `14:05` there are that a clock has."""
    return sum(_exists(time, match) for match in _CLOCK.findall(reply))


@bounded
def years(reply: str) -> int:
    """How many numbers from 1000 to 2099 there are."""
    return len(_YEAR.findall(reply))


@bounded
def urls(reply: str) -> int:
    """How many addresses of web pages there are."""
    return sum(_URL.match(word) is not None for word in _NO_URL.split(reply))


@bounded
def emails(reply: str) -> int:
    """How many addresses of mail there are."""
    return len(_EMAIL.findall(reply))


@bounded
def hashtags(reply: str) -> int:
    """How many words such as `#garden` there are."""
    return len(_HASHTAG.findall(reply))


@bounded
def mentions(reply: str) -> int:
    """How many names such as `@ann` there are."""
    return len(_MENTION.findall(reply))


@bounded
def percentages(reply: str) -> int:
    """How many numbers with a percent sign there are."""
    return len(_PERCENT.findall(reply))


@bounded
def amounts(reply: str, *, currency: str) -> int:
    """How many numbers the sign of the currency stands before, or after."""
    sign = re.escape(currency)
    return len(
        re.findall(
            rf"(?<!\w){sign}{_SPACE}\d+(?:[.,]\d+)*|(?<![\w.,])\d+(?:[.,]\d+)*{_SPACE}{sign}(?!\w)",
            reply,
        )
    )


@bounded
def measures(reply: str, *, unit: str) -> int:
    """How many numbers the unit stands after, e.g. `3 km`."""
    return len(re.findall(rf"(?<![\w.])\d+(?:\.\d+)?{_SPACE}{re.escape(unit)}(?!\w)", reply))


@bounded
def hex_colours(reply: str) -> int:
    """How many colours such as `#1e90ff` there are."""
    return len(_HEX_COLOUR.findall(reply))


@bounded
def version_numbers(reply: str) -> int:
    """How many versions such as `v1.4.2` there are."""
    return len(_VERSION.findall(reply))


@bounded
def roman_numerals(reply: str) -> int:
    """How many Roman numerals of at least two letters there are."""
    return sum(len(found) > 1 for found in _ROMAN.findall(reply))


def no_first_person(reply: str) -> bool:
    """The reply speaks of no `I` and no `we`."""
    return _without(reply, _FIRST_PERSON)


def first_person(reply: str) -> bool:
    """Every sentence speaks of `I` or `we`, or of what is theirs."""
    return _in_each_sentence(reply, _FIRST_PERSON)


def second_person(reply: str) -> bool:
    """Every sentence speaks to `you`, or of what is yours."""
    return _in_each_sentence(reply, _SECOND_PERSON)


def quotes(reply: str, *, text: str) -> bool:
    """The reply has the text in double quotation marks."""
    return any(f"{begin}{text}{end}" in reply for begin, end in QUOTES)


def _numbers(reply: str) -> list[Decimal]:
    return [Decimal(found.replace(",", "")) for found in _NUMBER.findall(_plain(reply))]


def _only_numbers(reply: str) -> list[Decimal]:
    """The numbers; none where digits stand in something else, too, e.g. in `5km`."""
    left = _NUMBER.sub("", _plain(reply))
    return [] if any(character.isdigit() for character in left) else _numbers(reply)


def _plain(reply: str) -> str:
    """With ASCII's minus sign, and a space between the numbers of a list and of a range."""
    text = _RANGE.sub(" ", reply.replace("\u2212", "-"))
    return _LISTED.sub(", ", text)


def _is_even(number: Decimal) -> bool:
    """Whole, and even; also of more digits than arithmetic has."""
    _, written, exponent = number.as_tuple()
    return exponent == 0 and written[-1] % 2 == 0


def _is_right(left: str, result: str) -> bool:
    total = 0
    for sign, factors in _TERM.findall(left):
        product = prod(int(factor) for factor in factors.split("*"))
        total += -product if sign == "-" else product
    return total == int(result)


def _exists(kind: Callable[..., object], parts: Sequence[str]) -> bool:
    try:
        kind(*(int(part) for part in parts))
    except ValueError:
        return False
    return True


def _without(reply: str, words: frozenset[str]) -> bool:
    found = [re.split(r"['’]", word.lower())[0] for word in words_of(reply)]
    return bool(found) and words.isdisjoint(found)


def _in_each_sentence(reply: str, words: frozenset[str]) -> bool:
    found = sentences_of(reply)
    return bool(found) and not any(_without(sentence, words) for sentence in found)


CONTENT_KINDS: Mapping[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        one_of,
        holds_one_of,
        chosen_letter,
        yes_or_no,
        numbers,
        only_number,
        number_between,
        growing_numbers,
        sum_of_numbers,
        even_numbers,
        right_equations,
        iso_dates,
        clock_times,
        years,
        urls,
        emails,
        hashtags,
        mentions,
        percentages,
        amounts,
        measures,
        hex_colours,
        version_numbers,
        roman_numerals,
        no_first_person,
        first_person,
        second_person,
        quotes,
    )
}
