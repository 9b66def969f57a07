"""Which kinds of files are read, by their names."""

from __future__ import annotations

import posixpath
from typing import Literal, TypeAlias

from infra.errors import InputError

Kind: TypeAlias = Literal["json", "csv", "parquet", "arrow"]
_TEXTS: dict[str, Kind] = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
}
_TABLES: dict[str, Kind] = {".parquet": "parquet", ".arrow": "arrow"}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
KINDS_READ = (
    f"Read are {', '.join(_TEXTS)} (each also with {', '.join(_COMPRESSIONS)}),"
    f" {', '.join(_TABLES)}, and folders of one kind of them"
)


def kind_of(path: str) -> Kind | None:
    """None for a file that is not read."""
    bare, ending = posixpath.splitext(path.lower())
    if ending in _COMPRESSIONS:
        return _TEXTS.get(posixpath.splitext(bare)[1])
    return _TEXTS.get(ending) or _TABLES.get(ending)


def compression_of(path: str) -> str:
    """Empty for none."""
    return _COMPRESSIONS.get(posixpath.splitext(path.lower())[1], "")


def suffix_of(path: str) -> str:
    """Without that of its compression, in lower case."""
    bare, ending = posixpath.splitext(path.lower())
    return posixpath.splitext(bare)[1] if ending in _COMPRESSIONS else ending


_FIRST_BYTES = {
    b"PAR1": "is Parquet; name it .parquet",
    b"ARROW1": "is an Arrow file of random access (Feather); write it as Parquet",
    b"\x1f\x8b": "is compressed by gzip; name it so, e.g. .jsonl.gz",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; name it so, e.g. .jsonl.zst",
    b"PK\x03\x04": "is a zip archive or a spreadsheet; unpack it, or save it as CSV",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
}
_POINTER = b"version https://git-lfs.github.com/spec/"


def require_content(head: bytes, kind: Kind, name: str) -> None:
    """Raises InputError for a file that begins as no file of its kind does."""
    if head.startswith(_POINTER):
        raise InputError(
            f"files: {name} is not there yet: it is a pointer of Git LFS; run `git lfs pull`"
        )
    if kind in ("parquet", "arrow"):
        return  # their readers say it
    for first, said in _FIRST_BYTES.items():
        if head.startswith(first):
            raise InputError(f"files: {name} {said}. {KINDS_READ}")
