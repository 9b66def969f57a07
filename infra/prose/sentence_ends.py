"""Where a sentence ends: at its mark, but not at that of a short form; before an item of a list, a
heading and an empty line."""

from __future__ import annotations

from collections.abc import Iterator

import regex

from infra.prose.plain_text import SPACELESS, has_text

_MARK = regex.compile(
    rf"""(?<![.!?…])
    (?:([.!?…]++)(?:[*_"”’'»)\]]++(?=\s+[^\p{{Ll}}\s]|\s*\Z)|(?=\s|\Z|\p{{Emoji_Presentation}}))
    |((?<={SPACELESS})[!?]++|[!?]++(?={SPACELESS})))
    |([。！？।॥؟۔።။។։｡]++)(?![」』]++[、とっはがをのにもで])""",
    regex.V1 | regex.X,
)
_ITEM = regex.compile(r"\s*(?:[-*+•]|\d{1,9}[.)])\s+(?=\S)")
_HEADING = regex.compile(r" {0,3}#{1,6} ")
_LAST = regex.compile(r"(?<![\p{L}\p{N}.])(?:\p{L}+\.)*\p{L}+\Z")
_NEXT = regex.compile(r"""[\s"“”‘’'(\[*_]*(?:(\p{L}+)|(\p{N}))?""")
_ACRONYM = regex.compile(r"(?:\p{Lu}\.)+\p{Lu}")
_NAME = regex.compile(r"\s+(?:\p{Lu}\.\s*){0,3}\p{Lu}\p{L}+")
_BEFORE, _AFTER = 24, 40
"""characters that are looked at on both sides of a mark"""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TITLES = _set(
    "Dr Mr Mrs Ms Mx Prof St Mt Gen Col Capt Cpt Lt Sgt Gov Sen Rep Rev Hon Pres Messrs Mme Mlle"
    " Sr Sra Srta Dra Hr"
)
_NEVER = _set("vs e.g i.e cf viz approx ca z.b d.h u.a bzw т.е")
"""after which a sentence goes on"""
_NUMBERED = _set("no nos fig figs eq ch vol p pp nr")
"""after which it goes on with a number; as after the next, in capitals alone"""
_NUMBERED_NAMES = _set("Art Sec Op Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec")
_RARELY = _set(
    "etc al a.m p.m ph.d m.d b.a m.a b.sc m.sc b.c a.d b.c.e c.e usw ud uds г гг т.д т.п"
)
"""after which it goes on unless a capital letter follows"""
_CLOCK_NAMES = _set(
    "monday tuesday wednesday thursday friday saturday sunday est edt cst cdt mst mdt pst pdt gmt"
    " utc cet"
)
_OF_NAMES = _set("Inc Ltd Co Corp Bros Jr Dept Ave Blvd Rd")
"""after which a capital letter may go on with a name, as after initials"""
_DAY = regex.compile(r"(?<!\d)\d\d?\Z")
_AFTER_DAY = _set(
    "januar februar märz april mai maj juni juli august september oktober november dezember"
    " december jahrhundert"
)
"""words with which a German or Danish ordinal goes on"""
_SPACED_PAIR = regex.compile(r"(?<!\p{L})\p{Ll}\.\s\p{Ll}\Z")
_OF_PAIR = regex.compile(r"\s\p{L}\.")
"""short forms written apart, e.g. `d. h.`"""
_LETTERED = regex.compile(
    r"\b(?:option|plan|part|section|answer|type|group|team|class|figure|table|vitamin|grade|appendix"
    r"|choice|point|side|case|chapter|level|letter|exhibit)\s+\p{L}\Z",
    regex.IGNORECASE,
)
"""a letter that is no initial"""
_STARTERS = _set(
    "the a an he she it they we i you this that these those his her their our my your its but and"
    " or however so then there in on at when if yes no what why how who where which one many some"
    " most all after before while as for from with to not now today here let please also although"
    " because since both each every few nobody everybody someone"
)
"""words in capitals with which a sentence begins, and no name goes on"""


def sentences_of(text: str) -> list[str]:
    """Stretches that end in a mark such as `.`, `?` or `。`, or where the rest has no end. Without
    letters and digits it is none, and the mark of a list's item is not in it."""
    return [sentence for sentence, _ in ended_sentences_of(text)]


def ended_sentences_of(text: str) -> list[tuple[str, str]]:
    """Return each sentence without its end, and its end, e.g. `Is it? So` -> `[("Is it", "?"),
    ("So", "")]`."""
    found = list[tuple[str, str]]()
    for block in _blocks(text):
        begin = 0
        for mark in _MARK.finditer(block):
            end = str(mark[1] or mark[2] or mark[3])
            if mark[1] and not _is_end(block, end, mark.start(), mark.end()):
                continue
            found.append((block[begin : mark.start()].strip(), end))
            begin = mark.end()
        found.append((block[begin:].strip(), ""))
    return [(sentence, mark) for sentence, mark in found if has_text(sentence)]


def _blocks(text: str) -> Iterator[str]:
    """Parts in which a sentence that begins also ends."""
    lines = list[str]()
    for line in text.splitlines():
        item = _ITEM.match(line)
        is_heading = _HEADING.match(line) is not None
        if item or is_heading or not has_text(line):
            yield "\n".join(lines)
            lines = []
        lines.append(line[item.end() if item else 0 :])
        if is_heading:
            yield "\n".join(lines)
            lines = []
    yield "\n".join(lines)


def _is_end(block: str, mark: str, start: int, stop: int) -> bool:
    """Return whether a mark before white space ends a sentence."""
    if not block[stop : stop + _AFTER].strip() and not block[stop:].strip():
        return True
    rest = block[stop : stop + _AFTER]
    found = _NEXT.match(rest)
    word, digit = (found[1] or "", found[2] or "") if found else ("", "")
    if len(mark) > 2 or "…" in mark:
        return bool(set(mark) - {".", "…"}) or not word[:1].islower()
    before = block[max(0, start - _BEFORE) : start]
    last = _LAST.search(before)
    if mark == "." and _DAY.search(before) and word.lower() in _AFTER_DAY:
        return False
    if mark != "." or last is None:
        return True
    if _SPACED_PAIR.search(before):
        return word[:1].isupper()
    if last[0].islower() and len(last[0]) == 1 and _OF_PAIR.match(rest):
        return False
    if _LETTERED.search(before):
        return True
    is_first = start <= _BEFORE and before.strip() == last[0]
    return _ends_after(str(last[0]), word, digit, rest, is_first=is_first)


def _ends_after(last: str, word: str, digit: str, rest: str, *, is_first: bool) -> bool:
    """Return whether a sentence ends with `last` and a full stop, before this word or digit."""
    small, is_capital = last.lower(), word[:1].isupper()
    if small in _NEVER or last in _TITLES or (last.isupper() and last.capitalize() in _TITLES):
        return False
    if digit and (small in _NUMBERED or last in _NUMBERED_NAMES):
        return False
    if small in _RARELY:
        return is_capital and not (small in ("a.m", "p.m") and word.lower() in _CLOCK_NAMES)
    begins = is_capital and word.lower() in _STARTERS
    if last in _OF_NAMES or _ACRONYM.fullmatch(last):
        return begins
    if len(last) == 1 and last.isupper() and (last != "I" or is_first):
        return begins or (not word[:1].islower() and _NAME.match(rest) is None)
    return True
