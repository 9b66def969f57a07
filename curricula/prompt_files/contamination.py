"""Whether a text repeats what is held out: n words in a row that both have.

Words are compared in lower case, without marks and accents of writing (Unicode NFKC). In scripts
that have no spaces between words each sign is one. A held-out text of fewer than n words counts
only where it is the whole of the other text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.shown_text import normal_form

_SPACELESS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Japanese kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
_WORD = re.compile(rf"(?=\w)[{_SPACELESS}]|(?:(?![{_SPACELESS}])\w)+")


class HeldOutWords:
    """Runs of words of the held-out texts."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._runs: dict[int, int] = {}
        """the number of a text, by the hash of a run of its words"""
        self._names: list[str] = []

    def add(self, name: str, text: str) -> None:
        number = len(self._names)
        self._names.append(name)
        for run in runs(text, self._n):
            self._runs.setdefault(hash(run), number)

    def shared_with(self, text: str) -> tuple[str, str] | None:
        """The first run of words that a held-out text has as well, and that text's name."""
        for run in runs(text, self._n):
            number = self._runs.get(hash(run))
            if number is not None:
                return " ".join(run), self._names[number]
        return None

    def __len__(self) -> int:
        """Count the texts."""
        return len(self._names)


def runs(text: str, n: int) -> Iterator[tuple[str, ...]]:
    """Yield all runs of n words; of a shorter text the whole, which no run of n words equals."""
    words = _WORD.findall(normal_form("NFKC", text).lower())
    if 0 < len(words) <= n:
        yield tuple(words)
    for at in range(len(words) - n + 1 if len(words) > n else 0):
        yield tuple(words[at : at + n])
