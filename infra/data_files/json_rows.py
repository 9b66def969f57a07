"""JSON files: one object a line, or one value that holds all rows.

A chunk is about a mebibyte of whole lines, or of whole elements of an array, which may be of any
size: no more of it is in memory than a chunk and one element.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast

import orjson

from infra.data_files.heads import suffix_of
from infra.data_files.rows import (
    BYTE_ORDER_MARK,
    BadRow,
    Chunk,
    Reason,
    Rows,
    lines_of,
    require_size,
    row_without_faults,
)
from infra.json_text import DuplicateKey, parse_loosely

Form: TypeAlias = Literal["lines", "array", "values"]
"""values: objects that stand one after the other, each over several lines"""
_BLOCK, _HEAD = 1 << 20, 1 << 16
_NEAR_END = 16
"""an error so near to the end of what was read may come from its being cut off there"""


def form_of(head: bytes, name: str) -> Form:
    """The form of a file that begins so. A name says little: arrays and lines are both `.json`."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    first, _, rest = text.partition(b"\n")
    if text.startswith(b"["):
        return "lines" if rest.strip() and _ends_at(first) < 0 else "array"
    is_spread = text.startswith(b"{") and rest and _ends_at(first) >= len(first.rstrip())
    return "values" if is_spread and suffix_of(name) == ".json" else "lines"


def _ends_at(line: bytes) -> int:
    """Where a line stops to be JSON; -1 for one that is JSON as a whole."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return error.pos
    return -1


class JsonRows:
    """Texts of one row each."""

    def __init__(self, rows: list[tuple[int, bytes]]) -> None:
        """Each with its line, or its place in the array."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def line(self, index: int) -> int:
        return self._rows[index][0]

    def row(self, index: int) -> Mapping[str, Any]:
        try:
            found, is_whole = parse_loosely(self._rows[index][1])
        except DuplicateKey as error:
            raise BadRow(Reason.NOT_JSON, str(error)) from None
        except UnicodeDecodeError:
            raise BadRow(Reason.NOT_JSON, "is not UTF-8; save the file so") from None
        except ValueError as error:
            raise BadRow(
                Reason.NOT_JSON, f"is not JSON: {_fault(error, self._rows[index][1])}"
            ) from None
        if not isinstance(found, dict):
            raise BadRow(Reason.NOT_JSON, "is no JSON object")
        row = cast("dict[str, Any]", found)
        return row if is_whole else row_without_faults(row)


def _fault(error: ValueError, text: bytes) -> str:
    """Return what is wrong, where in the row, and whether the row is a part of one."""
    said = str(error)
    if isinstance(error, json.JSONDecodeError):  # its line is the row's own, and not the file's
        at = min(error.pos, len(str(error.doc).rstrip())) + 1
        said = f"{error.msg}, at character {at} of the row"
    if text.strip() in (b"{", b"[", b"}", b"]"):
        said += "; if each object stands over several lines, name the file .json"
    elif b"}\r{" in text:
        said += "; its lines end with a carriage return alone: save the file with line feeds"
    elif text.lstrip().startswith((b"{'", b"[{'")):
        said += "; it is written as Python prints it: write it with json.dumps"
    elif text.rstrip().endswith(b"},"):
        said += "; a line ends with a comma: take it out, or name an array .json"
    elif re.search(rb"[:,\[]\s*(?:True|False|None)\b", text):
        said += "; True, False and None are Python's: write it with json.dumps"
    elif text[:1].isalpha():
        said += "; a table with a header is named .csv or .tsv"
    return said


class JsonFile:
    """A file on this machine."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        with path.open("rb") as file:
            self._form: Form = form_of(file.read(_HEAD), name)

    def chunks(self, number: int, size: int) -> Iterator[Chunk]:
        with self._path.open("rb") as file:
            yield from (
                _line_chunks(number, file, size)
                if self._form == "lines"
                else (_element_chunks(number, _elements(file, self._form), size))
            )

    def read(self, chunk: Chunk) -> Rows:
        with self._path.open("rb") as file:
            file.seek(chunk.start)
            text = file.read(chunk.num_bytes)
        if self._form == "lines":
            return _rows_of_lines(text, chunk.first_row)
        found = _elements(io.BytesIO(text), "values")
        return JsonRows([(n, each) for n, (_, each) in enumerate(found, chunk.first_row)])


def first_json(opened: BinaryIO, head: bytes, name: str, most: int) -> tuple[Rows, bool]:
    """`opened` begins with `head`."""
    form = form_of(head, name)
    if form == "lines":
        opened.read(len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0)
        rows = (each for each in enumerate(lines_of(opened), 1) if not _is_empty(each[1]))
    else:
        rows = enumerate((each for _, each in _elements(opened, form)), 1)
    found = list(islice(rows, most + 1))
    return JsonRows(found[:most]), len(found) <= most


def _rows_of_lines(text: bytes, first_line: int) -> JsonRows:
    lines = enumerate(_lines(text, is_start=first_line == 1), first_line)
    return JsonRows([(number, line) for number, line in lines if not _is_empty(line)])


def _line_chunks(number: int, file: BinaryIO, size: int) -> Iterator[Chunk]:
    at, line = 0, 1
    while text := file.read(size):
        if not text.endswith(b"\n"):
            text += next(lines_of(file), b"")
        num_lines = text.count(b"\n") + (not text.endswith(b"\n"))
        is_blank = text.isspace()  # quick, whatever the number of its lines
        rows = 0 if is_blank else sum(not _is_empty(x) for x in _lines(text, is_start=at == 0))
        if rows:
            yield Chunk(number, at, len(text), line, rows)
        at, line = at + len(text), line + num_lines


def _lines(text: bytes, *, is_start: bool) -> list[bytes]:
    """`is_start`: the text is the start of a file."""
    return (text.removeprefix(BYTE_ORDER_MARK) if is_start else text).split(b"\n")


def _is_empty(line: bytes) -> bool:
    return not line or line.isspace()


def _element_chunks(number: int, found: Iterator[tuple[int, bytes]], size: int) -> Iterator[Chunk]:
    first, start, end, rows = 1, 0, 0, 0
    for at, text in found:
        if rows and end - start >= size:
            yield Chunk(number, start, end - start, first, rows)
            first, rows = first + rows, 0
        start, end, rows = (start if rows else at), at + len(text), rows + 1
    if rows:
        yield Chunk(number, start, end - start, first, rows)


def _elements(file: BinaryIO, form: Form) -> Iterator[tuple[int, bytes]]:
    """First byte and text of each. Raises ValueError where the file is no JSON."""
    values = _Values(file)
    if form == "values":  # part of an array has commas between them
        while sign := values.sign():
            if sign == ",":
                values.skip()
            else:
                yield values.take()
        return
    values.sign()
    values.skip()
    if values.sign() != "]":
        yield values.take()
    while (sign := values.sign()) == ",":
        values.skip()
        values.sign()
        yield values.take()
    if sign != "]":
        raise ValueError(f"byte {values.at}: the array goes on with neither `,` nor `]`")
    values.skip()
    if values.sign():
        raise ValueError(f"byte {values.at}: something follows the array")


class _Values:
    """JSON values one after the other in a file that is read as far as they go."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._text = ""
        """one sign a byte: JSON's own signs are the same in UTF-8"""
        self._before = 0
        """bytes of the file before this text"""
        self._next = 0
        if self._more() and self._text.startswith(BYTE_ORDER_MARK.decode("latin-1")):
            self._next = len(BYTE_ORDER_MARK)

    @property
    def at(self) -> int:
        return self._before + self._next

    def sign(self) -> str:
        """The next one that is no white space; empty at the end."""
        while True:
            while self._next < len(self._text):
                if self._text[self._next] not in " \t\r\n":
                    return self._text[self._next]
                self._next += 1
            if not self._more():
                return ""

    def skip(self) -> None:
        self._next += 1

    def take(self) -> tuple[int, bytes]:
        while True:
            try:
                _, end = _SCANNER.raw_decode(self._text, self._next)
            except json.JSONDecodeError as error:
                at = self._before + error.pos
                is_cut_off = error.pos >= len(self._text) - _NEAR_END
                is_cut_off |= error.msg.startswith("Unterminated string")
                if not (is_cut_off and self._more()):
                    raise ValueError(f"byte {at}: is not JSON: {error.msg}") from None
            except RecursionError:
                raise ValueError(f"byte {self.at}: is nested too deeply") from None
            else:
                if end < len(self._text) or not self._more():  # a number might go on
                    at, text = self.at, self._text[self._next : end]
                    self._next = end
                    return at, text.encode("latin-1")

    def _more(self) -> bool:
        """Twice as much of the value that is being read: it is looked at again from its start."""
        self._before += self._next
        kept = self._text[self._next :]
        require_size(len(kept))
        self._next = 0
        read = self._file.read(max(_BLOCK, len(kept)))
        self._text = kept + read.decode("latin-1")
        return bool(read)


_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str)
