"""Constraints on the form of a reply: lists, tables, code, dialogue, Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from rewards.constraints.bounds import bounded
from rewards.text import lines_of, paragraphs_of, without_mark, words_of

_BULLET = re.compile(r"^\s*[-*]\s+\S")
_NUMBERED = re.compile(r"^\s*(\d+)[.)]\s+\S")
_CHECKBOX = re.compile(r"^\s*[-*] \[[ xX]\] \S")
_HIGHLIGHT = re.compile(r"(?<!\*)\*(?![\s*])[^*\n]*[^\s*]\*(?!\*)|(?<!\*)\*[^\s*]\*(?!\*)")
_BOLD = re.compile(r"\*\*(?!\s)[^*\n]+(?<!\s)\*\*")
_HEADING = re.compile(r"^(#{1,6}) +\S")
_FENCE = re.compile(r"```([\w+-]*)[ \t]*")
_INLINE_CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\[\]\n]+\]\([^\s()\[\]]+\)")
_RULE = re.compile(r"^[ \t]*(?:\*{3,}|-{3,}|_{3,})[ \t]*$", re.MULTILINE)
_TITLE = re.compile(r"<<([^\n<>]+)>>")
_TABLE_RULE = re.compile(r":?-+:?")
_KEYED = re.compile(r"^\s*[^\s:][^:]*:\s+\S")
_FORMULA = re.compile(r"(?<![\\$])\$(?!\s)[^$\n]+(?<!\s)\$(?!\$)")
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
def numbered_count(reply: str) -> int:
    """How many items `1.`, `2.`, ... there are; 0 if the numbers are not those, in order."""
    found = [int(match[1]) for line in lines_of(reply) if (match := _NUMBERED.match(line))]
    return len(found) if found == list(range(1, len(found) + 1)) else 0


@bounded
def checkbox_count(reply: str) -> int:
    """How many lines are items `- [ ] ...` or `- [x] ...`."""
    return sum(_CHECKBOX.match(line) is not None for line in lines_of(reply))


def nested_bullets(reply: str) -> bool:
    """At least one item stands further right than the item of the line before it."""
    found = [len(line) - len(line.lstrip()) for line in lines_of(reply) if _BULLET.match(line)]
    return any(first < second for first, second in pairwise(found))


@bounded
def numbered_steps(reply: str, *, word: str = "Step") -> int:
    """How many lines begin with `Step 1:`, `Step 2:`, ...; 0 if not those, in order."""
    begin = re.compile(rf"{re.escape(word)} (\d+): *\S")
    found = [int(match[1]) for line in lines_of(reply) if (match := begin.match(line.strip()))]
    return len(found) if found == list(range(1, len(found) + 1)) else 0


@bounded
def highlights(reply: str) -> int:
    """How many parts are `*set apart*`, `**strongly**` or not."""
    return len(_HIGHLIGHT.findall(reply)) + len(_BOLD.findall(reply))


@bounded
def bold_parts(reply: str) -> int:
    """How many parts are `**bold**`."""
    return len(_BOLD.findall(reply))


@bounded
def headings(reply: str, *, level: int | None = None) -> int:
    """How many Markdown headings there are, of this level or of any."""
    found = [match for line in _outside_code(reply) if (match := _HEADING.match(line))]
    return sum(level is None or len(match[1]) == level for match in found)


@bounded
def sections(reply: str, *, word: str) -> int:
    """How many sections begin with e.g. `Section 1`."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}\s?\d+(?!\w)", reply))


def title(reply: str) -> bool:
    """The reply has a title in double angular brackets: `<<A title>>`."""
    return any(found.strip() for found in _TITLE.findall(reply))


def table(reply: str, *, columns: int | None = None, rows: int | None = None) -> bool:
    """The reply has a Markdown table, of so many columns and rows below its head if said."""
    lines = [line.strip() for line in reply.splitlines()]
    for index in range(1, len(lines)):
        width, rule = len(_cells(lines[index - 1])), _cells(lines[index])
        is_rule = all(_TABLE_RULE.fullmatch(cell.strip()) for cell in rule)
        if width < 2 or len(rule) != width or not is_rule:
            continue
        body = 0
        while index + 1 + body < len(lines) and len(_cells(lines[index + 1 + body])) == width:
            body += 1
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
def parts_between_rules(reply: str) -> int:
    """How many parts there are between lines of `***` or `---`."""
    return sum(bool(part.strip()) for part in _RULE.split(reply))


def two_answers(reply: str) -> bool:
    """Two different answers with a line of six asterisks between them, and nothing else."""
    parts = [part.strip() for part in reply.split(_TWO_ANSWERS)]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def no_markdown(reply: str) -> bool:
    """The reply has no headings, items, bold parts, code or links of Markdown."""
    marked = any(_HEADING.match(s) or _BULLET.match(s) for s in lines_of(reply))
    signs = (_BOLD, _INLINE_CODE, _LINK)
    return not marked and "```" not in reply and not any(sign.search(reply) for sign in signs)


def one_line(reply: str) -> bool:
    """The reply is one line."""
    return len(reply.strip().splitlines()) == 1


def one_paragraph(reply: str) -> bool:
    """The reply is one paragraph, without an empty line."""
    return len(paragraphs_of(reply)) == 1


@bounded
def indentation(reply: str) -> int:
    """By how many spaces the lines are set in; -1 if not all by the same number."""
    found = {len(line) - len(line.lstrip(" ")) for line in lines_of(reply)}
    return found.pop() if len(found) == 1 else -1


def key_value_lines(reply: str, *, keys: Sequence[str] | None = None) -> bool:
    """Every line is `key: value`; with just these keys in this order if said."""
    found = lines_of(reply)
    is_keyed = bool(found) and all(_KEYED.match(line) for line in found)
    names = [line.partition(":")[0].strip() for line in found]
    return is_keyed and (keys is None or names == list(keys))


def dialogue(reply: str, *, names: Sequence[str], lines: int | None = None) -> bool:
    """Every line is `Name: text`; the names take turns in their order."""
    found = lines_of(reply)
    spoken = [line.partition(":") for line in found]
    wanted = [names[i % len(names)] for i in range(len(found))]
    in_turns = [name.strip() for name, _, _ in spoken] == wanted
    says = all(text.strip() for _, _, text in spoken)
    enough = len(found) >= len(names) if lines is None else len(found) == lines
    return bool(found) and in_turns and says and enough


def wrapped_in_tag(reply: str, *, tag: str) -> bool:
    """The reply is `<tag>text</tag>` and nothing else; the tag stands nowhere inside."""
    inner = reply.strip().removeprefix(f"<{tag}>").removesuffix(f"</{tag}>")
    is_whole = f"<{tag}>{inner}</{tag}>" == reply.strip()
    return is_whole and bool(inner.strip()) and f"<{tag}>" not in inner and f"</{tag}>" not in inner


def _cells(line: str) -> list[str]:
    """Of a line of a Markdown table; of other lines none."""
    return line.strip().strip("|").split("|") if "|" in line else []


def _outside_code(reply: str) -> list[str]:
    return code_apart(reply)[0]


def code_apart(reply: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The lines outside of fences, and of each fence that is closed its language and its code."""
    others, blocks = list[str](), list[tuple[str, str]]()
    opened, language = list[str](), None
    for line in reply.splitlines():
        fence = _FENCE.fullmatch(line)
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
