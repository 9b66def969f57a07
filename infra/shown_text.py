"""Text that somebody else wrote, as text: a terminal does nothing at it, and neither does a page.

A model, a tool, a row of a file, a log and an error may hold sequences that steer a terminal (its
clipboard, title, cursor, colours) and characters that turn the order of what follows. They are
shown by their number, such as `\\x1b`.

Secrets in its addresses are masked, and Unicode's normal forms take time that grows with its
length.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""control characters but for tabs and line ends, marks of direction, and separators of lines"""
_MARKDOWN = re.compile(
    r"([\\`*{}\[\]()<>#!|~&$@]|(?<!\w)_|_(?!\w)|:(?=//)|(?i:(?<=www))\.)",
)
"""what means something in markdown; within a word `_` does not, and an address does by itself"""

_IN_ADDRESSES = "%/:;,?@&=+$#!~*'-._"
"""what stays as it is in an address behind a link; a bracket or a blank would end it"""
_HELD = re.compile(
    r"(\b(?i:[a-z][a-z0-9+.-]{0,40})://[^/\s:@]*:)[^/\s@]+(?=@)"
    r"|\b((?i:AccountKey|SharedAccessKey|SharedAccessSignature)=)[^;\s\"'`]{8,}"
    r"|([?&;](?i:sig|signature|x-(?:amz|goog)-(?:signature|security-token|credential))=)"
    r"[^&;\s\"'`]{8,}"
    r"|([?&](?i:(?:\w+[_-])?(?:token|key|secret|password|passwd))=)(?!\$)[^&\s\"'`]{8,}"
)
"""a password before the host, an account's key or signature, and the like among the parameters"""


def shown(text: str) -> str:
    """Return what a terminal shows as it is; lines stay lines. It is its own result."""
    return _STEERING.sub(_number, text) if _STEERING.search(text) else text


def shown_line(text: str) -> str:
    """The text in one line, so that it cannot look like several."""
    return shown(text).replace("\n", "\\n")


class ShownRecord(logging.LogRecord):
    """A log record whose text is shown."""

    def getMessage(self) -> str:
        return shown(super().getMessage())


def show_log_records() -> None:
    """What this process logs from now on is text, also what a library logs of a row."""
    stock = logging.getLogRecordFactory()  # Ray, when it is imported, puts one of its own there

    def shown_record(*args: Any, **more: Any) -> logging.LogRecord:
        record = stock(*args, **more)
        record.__class__ = ShownRecord
        return record

    logging.setLogRecordFactory(shown_record)


def markdown_text(text: str) -> str:
    """Markdown that shows this text: it holds no link, picture, HTML or end of a table's cell."""
    return _MARKDOWN.sub(r"\\\1", shown(text).replace("\n", " "))


def markdown_code(text: str) -> str:
    """Markdown that shows this text in one line as code, which nothing in it ends."""
    text = shown_line(text)
    ticks = "`" * (_longest_ticks(text) + 1)
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{room}{text}{room}{ticks}"


def is_web_address(text: str) -> bool:
    """Return whether a page may link to it: a script, data or a file must not be behind a link."""
    return text.startswith(("http://", "https://"))


def markdown_link(text: str, page: str) -> str:
    """Markdown that leads to a page on the web; any other address is shown as code."""
    if is_web_address(page):
        return f"[{markdown_text(text)}]({quote(page, safe=_IN_ADDRESSES)})"
    return markdown_code(page) if page else markdown_text(text)


def markdown_block(text: str, language: str = "") -> str:
    """Markdown that shows this text as a block of code, which no line of it ends."""
    fence = "`" * max(3, _longest_ticks(text) + 1)
    return f"{fence}{language}\n{shown(text)}\n{fence}"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are text: nothing in a name is markup."""
    return table_of_markdown(
        list(map(markdown_text, header)), [list(map(markdown_text, row)) for row in rows]
    )


def table_of_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(markdown_cell, line)) + " |" for line in lines)


def markdown_cell(markdown: str) -> str:
    """Markdown that stays within its cell of a table, and holds no HTML. What is escaped already
    stays so: a second backslash would undo the first."""
    return _IN_CELLS.sub(
        lambda found: found[0] if found[0].startswith("\\") else f"\\{found[0]}",
        shown(markdown).replace("\n", " "),
    )


_IN_CELLS = re.compile(r"\\.|[<|]|\\$")


def _number(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def masked(text: str) -> str:
    """The text with `***` in place of the secrets of addresses."""
    return _HELD.sub(lambda found: f"{next(filter(None, found.groups()))}***", text)


def holds_secret(text: str) -> bool:
    """Return whether an address with a secret stands in it."""
    return _HELD.search(text) is not None


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
    """Return whether it is sorted among its neighbours; some signs only when they are taken
    apart."""
    if unicodedata.combining(sign):
        return True
    apart = unicodedata.decomposition(sign)
    return bool(apart) and unicodedata.combining(unicodedata.normalize("NFKD", sign)[0]) > 0
