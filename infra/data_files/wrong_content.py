"""Files that hold something else than their names say."""

from __future__ import annotations

from infra.data_files.kinds import KINDS_READ, Kind
from infra.errors import InputError

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
