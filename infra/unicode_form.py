"""Unicode's normal forms in time that grows with a text's length.

A run of combining marks is sorted, in time that grows with the square of its length: 80 kB of them
take ten seconds. No writing has more than 30 in a row (Unicode's stream-safe form), so longer runs
stay as they are.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from typing import Literal


def normal_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    """The text in a normal form of Unicode, but for runs of marks that no writing has."""
    if text.isascii():
        return text
    parts = _long_runs().split(text)
    parts[::2] = [unicodedata.normalize(form, part) for part in parts[::2]]
    return "".join(parts)


@functools.cache
def _long_runs() -> re.Pattern[str]:
    marks = "".join(filter(_is_mark, map(chr, range(sys.maxunicode + 1))))
    return re.compile(f"([{re.escape(marks)}]{{31,}})")


def _is_mark(sign: str) -> bool:
    """Whether it is sorted among its neighbours; some signs only when they are taken apart."""
    if unicodedata.combining(sign):
        return True
    apart = unicodedata.decomposition(sign)
    return bool(apart) and unicodedata.combining(unicodedata.normalize("NFKD", sign)[0]) > 0
