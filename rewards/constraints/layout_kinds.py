"""Constraints on the form of a reply: lists, tables, code, dialogue, Markdown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from infra.prose.plain_text import has_text, lines_of, paragraphs_of, without_mark, words_of
from rewards.constraints.bounds import NONE, bounded

_BULLET = re.compile(r"^\s*[-*]\s+\S")
_NUMBERED = re.compile(r"^\s*(\d{1,9})[.)]\s+\S")
_ITEM = re.compile(r"^(\s*)(?:[-*+•]|\d{1,9}[.)])\s+\S")
_CHECKBOX = re.compile(r"^\s*[-*] \[[ xX]\] \S")
_HIGHLIGHT = re.compile(r"(?<![*\w])\*(?!\s)[^*\n]+(?<!\s)\*(?![*\w])")
_BOLD = re.compile(r"\*\*(?!\s)[^*\n]+(?<!\s)\*\*")
_HEADING = re.compile(r"^(#{1,6}) +\S")
_FENCE = re.compile(r"``` ?([^\s`]*)")
_SIGNS = (
    re.compile(r"^[ \t]*(?:#{1,6} |[-*+] |\d+[.)] |> ?\S|```|~~~|=+$)", re.MULTILINE),
    re.compile(r"!?\[[^\[\]\n]*\]\([^\s()\[\]]+\)"),
    re.compile(r"(?<!\w)__?(?!\s)[^_\n]+(?<!\s)__?(?!\w)"),
)
"""of Markdown: what a line begins with, links and pictures, parts between underscores"""
_INLINE_CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\[\]\n]+\]\([^\s()\[\]]+\)")
_RULE = re.compile(r"^[ \t]*(?:\*{3,}|-{3,}|_{3,})[ \t]*$", re.MULTILINE)
_TITLE = re.compile(r"<<([^\n<>]+)>>")
_TABLE_RULE = re.compile(r":?-+:?")
_KEYED = re.compile(r"^\s*[^\s:][^:]*:\s+\S")
_FORMULA = re.compile(r"\$\$[^$]+\$\$|(?<![\\$])\$(?!\s)[^$\n]+(?<!\s)\$(?![\d$])")
_TWO_ANSWERS = "******"


def repetition(reply: str, *, unit: str, times: int, separator: str, end: str = "") -> bool:
    """The unit, so many times, with the separator between, and nothing else."""
    return reply == separator.join([unit] * times) + end


def joined(reply: str, *, separator: str, end: str = "") -> bool:
    """Only words, with just this separator between them and this end after the last."""
    found = words_of(reply)
    return bool(found) and reply == separator.join(found) + end


def numbered_list(
    reply: str, *, items: Sequence[str], mark: str = ". ", separator: str = "\n", end: str = ""
) -> bool:
    """These items, numbered from 1, in this order, and nothing else."""
    return reply == separator.join(f"{i}{mark}{item}" for i, item in enumerate(items, 1)) + end


def bullet_list(reply: str, *, count: int | None = None) -> bool:
    """Every line is an item `- ...`; `count` of them if said."""
    found = lines_of(reply)
    is_list = bool(found) and all(line.startswith("- ") and without_mark(line) for line in found)
    return is_list and (count is None or len(found) == count)


@bounded
def bullet_count(reply: str) -> int:
    """How many lines are items that begin with `-` or `*`, other text beside them or not."""
    return sum(_BULLET.match(line) is not None for line in lines_of(reply))


@bounded
def numbered_count(reply: str) -> float:
    """How many items `1.`, `2.`, ... there are; with other numbers no bound holds."""
    items = [match for line in lines_of(reply) if (match := _NUMBERED.match(line))]
    found = [int(match[1]) for match in items if has_text(match.string[match.end(1) :])]
    return len(found) if found == list(range(1, len(found) + 1)) else NONE


@bounded
def checkbox_count(reply: str) -> int:
    """How many lines are items `- [ ] ...` or `- [x] ...`."""
    return sum(_CHECKBOX.match(line) is not None for line in lines_of(reply))


def nested_bullets(reply: str) -> bool:
    """At least one item stands further right than the item of the line before it."""
    items = [match for line in lines_of(reply) if (match := _ITEM.match(line))]
    found = [len(match[1].expandtabs()) for match in items]
    return any(first < second for first, second in pairwise(found))


@bounded
def numbered_steps(reply: str, *, word: str = "Step") -> float:
    """How many lines begin with `Step 1:`, `Step 2:`, ...; with other numbers no bound holds."""
    begin = re.compile(rf"{re.escape(word)} (\d{{1,9}}):[*_]* *\S")
    found = [
        int(match[1]) for line in lines_of(reply) if (match := begin.match(line.strip(" \t*_#")))
    ]
    return len(found) if found == list(range(1, len(found) + 1)) else NONE


@bounded
def highlights(reply: str) -> int:
    """How many parts are `*set apart*`, `**strongly**` or not."""
    return _with_text(_HIGHLIGHT, reply) + _with_text(_BOLD, reply)


@bounded
def bold_parts(reply: str) -> int:
    """How many parts are `**bold**`."""
    return _with_text(_BOLD, reply)


@bounded
def headings(reply: str, *, level: int | None = None) -> int:
    """How many Markdown headings there are, of this level or of any."""
    found = [match for line in _outside_code(reply) if (match := _HEADING.match(line))]
    return sum(level is None or len(match[1]) == level for match in found)


@bounded
def sections(reply: str, *, word: str) -> int:
    """How many of `Section 1`, `Section 2`, ... there are, without a gap."""
    begin = re.compile(rf"(?<!\w){re.escape(word)}\s?(\d{{1,9}})(?!\w)")
    found = {int(number) for number in begin.findall(reply)}
    return next(n for n in range(len(found) + 1) if n + 1 not in found)


def title(reply: str) -> bool:
    """The reply has a title in double angular brackets: `<<A title>>`."""
    return _with_text(_TITLE, reply) > 0


def table(reply: str, *, columns: int | None = None, rows: int | None = None) -> bool:
    """The reply has a Markdown table, of so many columns and rows below its head if said."""
    lines = [line.strip() for line in reply.splitlines()]
    for index in range(1, len(lines)):
        width, rule = len(_cells(lines[index - 1])), _cells(lines[index])
        is_rule = all(_TABLE_RULE.fullmatch(cell.strip()) for cell in rule)
        if width < 2 or len(rule) != width or not is_rule:
            continue
        below = itertools.takewhile(
            lambda line, width=width: len(_cells(line)) == width, lines[index + 1 :]
        )
        body = sum(has_text(line) for line in below)
        if (columns is None or width == columns) and (rows is None or body == rows):
            return True
    return False


def code_block(reply: str, *, language: str = "") -> bool:
    """The reply has a block of code between fences, marked with the language if said."""
    _, blocks = code_apart(reply)
    written = [name.lower() for name, code in blocks if code.strip()]
    return bool(written) and (not language or language.lower() in written)


def only_code_block(reply: str, *, language: str = "") -> bool:
    """The reply is one block of code between fences, and nothing else."""
    others, blocks = code_apart(reply)
    is_alone = len(blocks) == 1 and not any(line.strip() for line in others)
    return is_alone and code_block(reply, language=language)


@bounded
def inline_code(reply: str) -> int:
    """How many parts are `code` between single backticks."""
    return sum(len(_INLINE_CODE.findall(line)) for line in _outside_code(reply))


@bounded
def links(reply: str) -> int:
    """How many Markdown links `[text](address)` there are."""
    return len(_LINK.findall(reply))


@bounded
def formulas(reply: str) -> int:
    """How many parts are formulas between dollar signs, as in LaTeX."""
    return len(_FORMULA.findall(reply))


@bounded
def quoted_lines(reply: str) -> int:
    """How many lines begin with `>`, as Markdown marks a quotation."""
    return sum(re.match(r"\s*>\s*\S", line) is not None for line in lines_of(reply))


@bounded
def parts_between_rules(reply: str, *, mark: str = "") -> int:
    """How many parts there are between lines of the mark alone, or of any rule: `***`, `---`."""
    rule = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*$", re.MULTILINE) if mark else _RULE
    return sum(bool(part.strip()) for part in rule.split(reply))


def two_answers(reply: str) -> bool:
    """The reply is two different answers with six asterisks between them, and nothing else."""
    parts = [part.strip() for part in reply.split(_TWO_ANSWERS)]
    said = [words_of(part.lower()) for part in parts]
    return len(parts) == 2 and all(parts) and said[0] != said[1]


def no_markdown(reply: str) -> bool:
    """The reply has no headings, items, quotations, tables, code, links, bold or slanted parts of
    Markdown."""
    signs = (*_SIGNS, _RULE, _HIGHLIGHT, _BOLD, _INLINE_CODE)
    return not any(sign.search(reply) for sign in signs) and not table(reply)


def one_line(reply: str) -> bool:
    """The reply is one line."""
    return len(reply.strip().splitlines()) == 1


def one_paragraph(reply: str) -> bool:
    """The reply is one paragraph, without an empty line."""
    return len(paragraphs_of(reply)) == 1


@bounded
def indentation(reply: str) -> float:
    """By how many spaces the lines are set in; with unequal lines no bound holds."""
    found = {len(line) - len(line.lstrip(" ")) for line in lines_of(reply)}
    return found.pop() if len(found) == 1 else NONE


def key_value_lines(reply: str, *, keys: Sequence[str] | None = None) -> bool:
    """Every line is `key: value`; with just these keys in this order if said."""
    found = lines_of(reply)
    is_keyed = bool(found) and all(_KEYED.match(line) for line in found)
    names = [line.partition(":")[0].strip(" \t*_") for line in found]
    is_keyed = is_keyed and all(has_text(line.partition(":")[2]) for line in found)
    return is_keyed and (keys is None or names == list(keys))


def dialogue(reply: str, *, names: Sequence[str], lines: int | None = None) -> bool:
    """Every line is `Name: text`; the names take turns in their order."""
    found = lines_of(reply)
    spoken = [line.partition(":") for line in found]
    wanted = [names[i % len(names)] for i in range(len(found))]
    in_turns = [name.strip(" \t*_") for name, _, _ in spoken] == wanted
    says = all(has_text(text) for _, _, text in spoken)
    enough = len(found) >= len(names) if lines is None else len(found) == lines
    return bool(found) and in_turns and says and enough


def wrapped_in_tag(reply: str, *, tag: str) -> bool:
    """The reply is `<tag>text</tag>` and nothing else; the tag stands nowhere inside."""
    inner = reply.strip().removeprefix(f"<{tag}>").removesuffix(f"</{tag}>")
    is_whole = f"<{tag}>{inner}</{tag}>" == reply.strip()
    return is_whole and bool(inner.strip()) and f"<{tag}>" not in inner and f"</{tag}>" not in inner


def _with_text(pattern: re.Pattern[str], reply: str) -> int:
    return sum(has_text(match[0]) for match in pattern.finditer(reply))


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table; other lines have none."""
    return line.strip().strip("|").split("|") if "|" in line else []


def _outside_code(reply: str) -> list[str]:
    return code_apart(reply)[0]


def code_apart(reply: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The lines outside of fences, and of each fence that is closed its language and its code."""
    others, blocks = list[str](), list[tuple[str, str]]()
    opened, language = list[str](), None
    for line in reply.splitlines():
        fence = _FENCE.fullmatch(line.strip())
        if language is None and fence is not None:
            opened, language = [line], fence[1]
        elif language is not None and fence is not None and not fence[1]:
            blocks.append((language, "\n".join(opened[1:])))
            opened, language = [], None
        else:
            (others if language is None else opened).append(line)
    return others + opened, blocks


LAYOUT_KINDS: Mapping[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        repetition,
        joined,
        numbered_list,
        bullet_list,
        bullet_count,
        numbered_count,
        checkbox_count,
        nested_bullets,
        numbered_steps,
        highlights,
        bold_parts,
        headings,
        sections,
        title,
        table,
        code_block,
        only_code_block,
        inline_code,
        links,
        formulas,
        quoted_lines,
        parts_between_rules,
        two_answers,
        no_markdown,
        one_line,
        one_paragraph,
        indentation,
        key_value_lines,
        dialogue,
        wrapped_in_tag,
    )
}
