"""Pathologies: ways in which a reply is broken, whatever its problem was; detectors, and a reward.

Each detector measures one number of a rollout. From its own number on, the rollout shows the
pathology. The numbers are chosen so that sound replies hardly ever reach them: code, tables, maths,
verse, quoted words and replies in any language.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import regex

from engines.types import Message, Status, Transcript, Verdict
from infra.errors import InputError
from infra.prose.plain_text import has_text
from infra.prose.sentence_ends import sentences_of
from rewards.built_in_rewards import PATHOLOGIES, Pathology
from rewards.text import TAGS, UNIT, assistant_turns, is_cut_in_thought


@dataclass(frozen=True, slots=True)
class Detector:
    """Example: `DETECTORS["refusal-loop"].is_in(transcript)`"""

    counts: str
    """what `measure` returns"""
    number: float
    """from which a rollout shows the pathology"""
    measure: Callable[[Transcript], float]

    def is_in(self, transcript: Transcript) -> bool:
        return self.measure(transcript) >= self.number


def pathologies_in(
    transcript: Transcript, names: Sequence[Pathology] = PATHOLOGIES
) -> list[Pathology]:
    """Return the pathologies of `names` that the rollout shows."""
    return [name for name in names if DETECTORS[name].is_in(transcript)]


_CLOSED_CODE = regex.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n.*?^[ \t]*\1[ \t]*$", regex.M | regex.S)
_SET_OFF = regex.compile(
    r"""`[^`\n]*` | \$\$.*?\$\$ | \$[^$\n]*\$ | \\\(.*?\\\) | \\\[.*?\\\] | https?://\S+
    | "[^"\n]{,200}" | “[^”\n]{,200}” | „[^“”\n]{,200}[“”] | «[^»\n]{,200}» | 「[^」\n]{,200}」
    | 『[^』\n]{,200}』 | \([^()\n]{,200}\) | （[^（）\n]{,200}） | \[[^][\n]{,200}\]
    | \*{1,2}[^*\n]{,200}\*{1,2} | ^[^\n]*\|[^\n]*\|[^\n]*$""",
    regex.X | regex.S | regex.M,
)
"""what stands beside the sentence that it is in: code, maths, quotes, brackets, emphasis, tables"""


def _prose(text: str) -> str:
    return str(_SET_OFF.sub(" ", _CLOSED_CODE.sub(" ", text)))


def _texts(turn: Message) -> list[str]:
    return [turn.reasoning or "", turn.content]


_SCRIPTS: Mapping[str, str] = {
    "Latin": r"\p{Latin}{1,}",
    "Chinese and Japanese": r"[\p{Han}\p{Hiragana}\p{Katakana}ー]{2,}",
    "Hangul": r"\p{Hangul}{2,}",
    "Cyrillic": r"\p{Cyrillic}{3,}",
    "Greek": r"\p{Greek}{4,}",
    "Arabic": r"\p{Arabic}{3,}",
    "Hebrew": r"\p{Hebrew}{3,}",
    "Devanagari": r"[\p{Devanagari}]{3,}",
    "Thai": r"\p{Thai}{3,}",
}
"""a word of each; a letter alone is a variable, a unit or a mark"""
_WORD = regex.compile("|".join(f"({word})" for word in _SCRIPTS.values()))
_NAMED: Mapping[str, str] = {
    "Latin": "english|englisch|anglais|inglés|英文|英语|英語|англ|영어",
    "Chinese and Japanese": "chine|china|chino|mandarin|cantonese|kanji|hanzi|japan|japon|中文",
    "Hangul": "korea|hangul|corea|corée",
    "Cyrillic": "russ|ruso|ukrain|bulgari|serbi|macedoni|kazakh|mongoli|cyrill",
    "Greek": "greek|griech|grec|grieg|greece",
    "Arabic": "arab|persian|farsi|urdu|iran|islam|quran",
    "Hebrew": "hebr|yiddish|israel|torah",
    "Devanagari": "hindi|sanskrit|nepal|marathi|devanagari|india",
    "Thai": "thai",
}
"""begins of words that tell that a script is meant, in the prompt or in the reply"""
_NAMES = {
    script: regex.compile(rf"(?<!\p{{Latin}})(?:{names})", regex.I)
    for script, names in _NAMED.items()
}
_ABOUT_LANGUAGE = re.compile(
    "(?<!large )(?<!programming )language|translat|übersetz|tradu|翻[译訳]|alphabet|etymolog"
)
_LATIN_SHARE = 0.3
"""of a prompt's letters, from which it is written in Latin letters and not only names something"""
_LATIN_RUN = 6
"""words in Latin letters, one after the other, from which they are no names or terms"""


def _stray_words(transcript: Transcript) -> float:
    """Words in a script that neither the prompt uses nor it or the reply names. A thought may be in
    a script of its own, as long as it stays in that."""
    given = [*transcript.problem.messages, *transcript.messages]
    prompt = " ".join(message.content for message in given if message.role != "assistant")
    if _ABOUT_LANGUAGE.search(prompt.lower()):
        return 0.0
    letters = _letters(_words(prompt))
    may = {script for script, count in letters.items() if script != "Latin" and count}
    if not letters or letters["Latin"] >= _LATIN_SHARE * letters.total():
        may.add("Latin")
    stray = 0
    for turn in assistant_turns(transcript):
        for text, is_thought in zip(_texts(turn), (True, False), strict=True):
            found = _words(_prose(text))
            used = _letters(found)
            meant = {s for s in used if s in may or _NAMES[s].search(f"{prompt} {text}")}
            if used and (is_thought or not letters):
                meant.add(used.most_common(1)[0][0])
            stray += _outside(found, meant)
    return float(stray)


def _words(text: str) -> list[tuple[str, str]]:
    """Each word with its script."""
    names = list(_SCRIPTS)
    return [(names[(m.lastindex or 1) - 1], m[0]) for m in _WORD.finditer(text)]


def _letters(words: Sequence[tuple[str, str]]) -> Counter[str]:
    """Return how many there are of each script."""
    counts = Counter[str]()
    for script, word in words:
        counts[script] += len(word)
    return counts


def _outside(words: Sequence[tuple[str, str]], meant: set[str]) -> int:
    stray, latin = 0, 0
    for script, _ in [*words, ("", "")]:
        if script == "Latin":
            latin += 1
            continue
        if latin >= _LATIN_RUN and "Latin" not in meant:
            stray += latin
        latin = 0
        stray += bool(script) and script not in meant
    return stray


_UNITS = regex.compile(UNIT, regex.V1)
_ROUNDS, _LONGEST_ROUND, _FEWEST = 5, 200, 48
"""a loop has so many rounds at least, of so many words at most, and so many words in all"""
_LETTERS_AGAIN = regex.compile(r"(\p{L}{1,8}?)\1{15,}")


def _looped_words(transcript: Transcript) -> float:
    """Words of the longest loop: a stretch of words that comes again at once, again and again. Code
    blocks that are closed do not count."""
    texts = [t for turn in assistant_turns(transcript) for t in _texts(turn)]
    return float(max((_loop(_CLOSED_CODE.sub(" ", text)) for text in texts), default=0))


def _loop(text: str) -> int:
    import numpy as np

    units: list[str] = _UNITS.findall(text)
    numbers = dict[str, int]()
    ids = np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.int32)
    has_letter = np.array([any(c.isalpha() for c in unit) for unit in units], dtype=np.bool_)
    longest = max(
        (len(found[0]) // len(found[1]) for found in _LETTERS_AGAIN.finditer(text)), default=0
    )
    for size in range(1, min(_LONGEST_ROUND, len(units) // _ROUNDS) + 1):
        again = ids[size:] == ids[:-size]
        if np.count_nonzero(again) < max(_FEWEST, _ROUNDS * size) - size:
            continue
        same = np.concatenate([[False], again, [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            length = end - begin + size
            if length >= _ROUNDS * size and has_letter[begin : begin + size].any():
                longest = max(longest, length)
    return longest


_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.M)


def _format_faults(transcript: Transcript) -> float:
    """Return how many there are: a broken turn, tags left in a text, an empty answer, open code."""
    if transcript.status is Status.MALFORMED:
        return 1.0
    if transcript.status is not Status.COMPLETED:
        return 0.0  # what is cut off is not closed
    turns = assistant_turns(transcript)
    faults = 0
    for turn in turns:
        for text in _texts(turn):
            bare = re.sub(r"(?<!`)`[^`\n]+`(?!`)", " ", str(_CLOSED_CODE.sub(" ", text)))
            faults += len(TAGS.findall(bare)) + len(_FENCE.findall(bare))
    is_empty = bool(turns) and not turns[-1].content.strip() and not turns[-1].tool_calls
    return float(faults + is_empty)


def _empty_thoughts(transcript: Transcript) -> float:
    """1 if thinking was asked for and no turn of a finished reply thought anything."""
    turns = assistant_turns(transcript)
    if transcript.status is not Status.COMPLETED or not transcript.problem.thinking or not turns:
        return 0.0
    return float(not any(has_text(turn.reasoning or "") for turn in turns))


def _endless_thoughts(transcript: Transcript) -> float:
    """1 if the budget ran out in a thought."""
    return float(is_cut_in_thought(transcript))


_REFUSES = re.compile(
    r"""\bI(?:['’]m|\ am)\ (?:sorry|afraid|unable|not\ able|not\ allowed|not\ comfortable)\b
    | \bI\ (?:can(?:['’]t|not|\ not)|won['’]t|will\ not|must\ (?:decline|refuse)|could\ not)\ ?
      (?:\b(?:help|assist|provide|comply|fulfil|answer\ (?:that|this)|do\ (?:that|this)|discuss|
      engage|continue\ with|support|participate|create|write|generate|share)\b|$)
    | \bAs\ an\ AI\b | \bagainst\ my\ (?:guidelines|programming|policy) |
    \b(?:ich\ kann|kann\ ich)\ (?:dir|Ihnen|dabei|das|leider)\ .{,30}nicht |
    \bje\ ne\ peux\ pas\ (?:vous\ aider|répondre|fournir) | \bno\ puedo\ (?:ayudar|proporcionar) |
    (?:无法|不能)(?:提供|回答|协助) | お答えできません | не\ могу\ (?:помочь|ответить)""",
    re.I | re.X,
)


def _refusals(transcript: Transcript) -> float:
    """Sentences of the answers that refuse; thoughts may weigh whether to."""
    answers = [str(_CLOSED_CODE.sub(" ", turn.content)) for turn in assistant_turns(transcript)]
    said = [sentence for answer in answers for sentence in sentences_of(answer)]
    return float(sum(_REFUSES.search(sentence) is not None for sentence in said))


DETECTORS: Mapping[Pathology, Detector] = {
    "language-mixing": Detector("words in a script that nobody asked for", 1, _stray_words),
    "repetition": Detector("words of a loop of at least five rounds", _FEWEST, _looped_words),
    "broken-format": Detector("tags, open code blocks, empty answers", 1, _format_faults),
    "empty-thought": Detector("finished replies without the thought asked for", 1, _empty_thoughts),
    "endless-thought": Detector("thoughts that the budget cut off", 1, _endless_thoughts),
    "refusal-loop": Detector("sentences that refuse", 4, _refusals),
}


class Pathologies:
    """-1 if the rollout shows a pathology, else 0; its parts say which."""

    def __init__(self, *, kinds: Sequence[Pathology] = PATHOLOGIES) -> None:
        """`kinds`: those that it looks for."""
        if not kinds or (unknown := [kind for kind in kinds if kind not in PATHOLOGIES]):
            what = f"no such kind: {unknown[0]!r}" if kinds else "none is named"
            raise InputError(f"`kinds`: {what}. Allowed: {', '.join(PATHOLOGIES)}.")
        self._kinds = tuple(kinds)

    async def __call__(self, transcript: Transcript) -> Verdict:
        found = pathologies_in(transcript, self._kinds)
        parts: dict[str, float] = {kind: float(kind in found) for kind in self._kinds}
        return Verdict(-float(bool(found)), parts, f"shows {', '.join(found)}" if found else "")
