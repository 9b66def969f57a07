"""Which kinds of files are read, by their names."""

from __future__ import annotations

import posixpath
from typing import Literal, TypeAlias

from infra.data_files.heads import other_kind
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


def require_content(head: bytes, wanted: str, name: str) -> None:
    """Raises InputError for a file that begins as no file of its kind, or of its compression,
    does."""
    if said := other_kind(head, "" if wanted in ("json", "csv") else wanted):
        raise InputError(f"files: {name} {said}. {KINDS_READ}")
