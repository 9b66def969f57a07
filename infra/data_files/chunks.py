"""Files cut into chunks: what is read at once.

A chunk of a text file is about a mebibyte of whole rows; one of Parquet is a row group, one of a
`datasets` folder a record batch.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

from infra.data_files import table_bounds
from infra.data_files.csv_rows import CsvFile, first_csv
from infra.data_files.files import DataFile, Joined, local_copy, open_file, state_of_source
from infra.data_files.json_rows import JsonFile, first_json
from infra.data_files.kinds import Kind, require_content
from infra.data_files.remembered import recall, remember
from infra.data_files.rows import Chunk, Rows
from infra.data_files.tables import ArrowFile, ParquetFile, TableRows, first_arrow, first_parquet
from infra.errors import InputError, TributaryError

CHUNK_BYTES = 1 << 20
_HEAD = 1 << 16
"""bytes that tell of what form a file is"""


class LocalFile(Protocol):
    """A file on this machine, uncompressed."""

    def chunks(self, number: int, size: int) -> Iterator[Chunk]:
        """`size`: bytes of one, where the file's own form does not say it."""
        ...

    def read(self, chunk: Chunk) -> Rows: ...


_READERS: Mapping[Kind, Callable[[Path, str], LocalFile]] = {
    "json": JsonFile,
    "csv": CsvFile,
    "parquet": ParquetFile,
    "arrow": ArrowFile,
}


class LocalFiles:
    """All rows of some files on this machine, by chunk."""

    def __init__(self, files: Sequence[DataFile], scratch: Path) -> None:
        """Reads every text file once, to find its rows, and not again before it changes; of Parquet
        only what it says of itself. Raises InputError for a file that cannot be read,
        StorageError."""
        self.names = [file.name for file in files]
        self._sources = list(files)
        self._files = [self._opened(file, scratch) for file in files]
        self.chunks = [c for number in range(len(files)) for c in self._chunks_of(number)]
        self.num_rows = sum(chunk.num_rows for chunk in self.chunks)

    def read(self, chunk: Chunk) -> Rows:
        """Raises InputError for a file that cannot be read."""
        with _readable(self.names[chunk.file]):
            return self._files[chunk.file].read(chunk)

    def read_together(self, chunks: Sequence[Chunk]) -> list[Rows]:
        """Raises what `read` raises, and InputError for tables that take more memory together than
        one may: in their files they may be small."""
        found: list[Rows] = []
        left = table_bounds.MOST_DECODED
        for chunk in chunks:
            rows = self.read(chunk)
            left -= rows.num_bytes if isinstance(rows, TableRows) else 0
            if left < 0:
                raise InputError(
                    f"files: {self.names[chunk.file]}: {len(found) + 1} row groups that are read"
                    f" together take more than {table_bounds.MOST_DECODED >> 20} MiB of memory;"
                    " write them anew with fewer rows a group"
                )
            found.append(rows)
        return found

    def _opened(self, file: DataFile, scratch: Path) -> LocalFile:
        path = local_copy(file, scratch)
        with _readable(file.path):
            with path.open("rb") as opened:
                require_content(opened.read(_HEAD), file.kind, file.path)
            return _READERS[file.kind](path, file.path)

    def _chunks_of(self, number: int) -> Iterator[Chunk]:
        with _readable(self.names[number]):
            source, found = self._sources[number], self._files[number].chunks(number, CHUNK_BYTES)
            is_read_whole = source.kind in ("json", "csv")
            yield from _known_chunks(number, source, found) if is_read_whole else found


def _known_chunks(number: int, source: DataFile, read: Iterator[Chunk]) -> Sequence[Chunk]:
    """Those that were found when this file was read last; else those that `read` finds."""
    import numpy as np

    what = f"chunks {CHUNK_BYTES} {_code_of(source.kind)}"
    name, state = source.fs.unstrip_protocol(source.path), state_of_source(source)
    told = recall(what, name, state) if state else None
    if told is not None:
        rows = np.frombuffer(base64.b64decode(told), "<i8").reshape(-1, 4).tolist()
        return [Chunk(number, *row) for row in rows]
    found = list(read)
    if state and state_of_source(source) == state:
        rows = [(c.start, c.num_bytes, c.first_row, c.num_rows) for c in found]
        remember(what, name, state, base64.b64encode(np.array(rows, "<i8").tobytes()).decode())
    return found


@cache
def _code_of(kind: Kind) -> str:
    """The code that cuts files of this kind: another version of it may cut them elsewhere."""
    code = sys.modules[_READERS[kind].__module__].__file__
    return hashlib.sha256(Path(str(code)).read_bytes()).hexdigest()


def first_rows(file: DataFile, most: int) -> tuple[Rows, bool]:
    """The first rows of a file wherever it is, and whether they are all it has.

    Raises InputError for a file that cannot be read.
    """
    with _readable(file.path), open_file(file) as opened:
        head = opened.read(_HEAD)
        require_content(head, file.kind, file.path)
        if file.kind in ("parquet", "arrow"):
            opened.seek(0)
            first = first_parquet if file.kind == "parquet" else first_arrow
            return first(opened, file.path, most)
        whole = io.BufferedReader(Joined(head, opened))
        if file.kind == "csv":
            return first_csv(whole, file.path, most)
        return first_json(whole, head, file.path, most)


@contextmanager
def _readable(name: str) -> Generator[None]:
    """Whatever reading this file raises is an InputError that names it."""
    try:
        yield
    except TributaryError:
        raise
    except Exception as error:  # files, compressions and kinds have errors of their own
        said = str(error) or type(error).__name__
        raise InputError(f"files: {name} cannot be read: {said}") from error
