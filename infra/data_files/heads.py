"""What a file is by how it begins, because a name says little of what people hand over or download;
and which kinds of files are read, by their names.

Every reader of data and models asks here before it reads, so that a file that is something else is
named in words.
"""

from __future__ import annotations

import codecs
import posixpath
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from infra.errors import InputError

HEAD_BYTES = 1024
"""as much of a file as tells its kind"""
_MOST_HEADER = 100_000_000
"""bytes of a safetensors header, as the format allows"""
_MOST_TEXT = 16 << 20
"""bytes of what a person wrote"""
_SURE = 4
"""bytes: a text, such as the names of a table's columns, may begin with that many by chance"""
_AS_TEXT = "save it as JSONL or CSV"
_NO_TEXT = "only text is read"
_NO_PROGRAM = "give the file that it writes"
_UTF16 = ("UTF-16", "save it as UTF-8")
_TORCH = "load it with torch and save the tensors as safetensors, or rows as JSONL"
_POINTER = b"version https://git-lfs.github.com/spec/"
_OLD_TORCH = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
_PAGES = (b"<!doctype html", b"<html", b"<?xml")
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


class _Head(NamedTuple):
    first: bytes
    what: str
    way_out: str
    kind: str = ""
    """what a reader of such files gives as `wanted`; empty where nothing here reads them"""


_HEADS = (
    _Head(b"PAR1", "Parquet", "name it .parquet", "parquet"),
    _Head(b"PARE", "encrypted Parquet", "decrypt it"),
    _Head(b"ARROW1", "an Arrow file of random access (Feather)", "write it as Parquet"),
    _Head(b"\xff\xff\xff\xff", "an Arrow stream", "name it .arrow", "arrow"),
    _Head(b"Obj\x01", "Avro", _AS_TEXT),
    _Head(b"\x1f\x8b", "compressed by gzip", "name it so, e.g. .jsonl.gz, or unpack it", "gzip"),
    _Head(b"\x28\xb5\x2f\xfd", "compressed by zstd", "name it so, e.g. .jsonl.zst", "zstd"),
    _Head(b"BZh", "compressed by bzip2", "name it so, e.g. .jsonl.bz2", "bz2"),
    _Head(b"\xfd7zXZ\x00", "compressed by xz", "name it so, e.g. .jsonl.xz", "xz"),
    _Head(b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    _Head(b"Rar!\x1a\x07", "a RAR archive", "unpack it"),
    _Head(b"GGUF", "a GGUF model", "name it .gguf and give it as `base.folder`", "gguf"),
    _Head(b"\x93NUMPY", "a NumPy array (.npy)", _AS_TEXT),
    _Head(b"\x89HDF\r\n\x1a\n", "HDF5", f"{_AS_TEXT}, or a model as safetensors"),
    _Head(b"SQLite format 3\x00", "an SQLite database", _AS_TEXT),
    _Head(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document", _AS_TEXT),
    _Head(b"\x7fELF", "a program (ELF)", _NO_PROGRAM),
    _Head(b"MZ\x90\x00", "a program of Windows", _NO_PROGRAM),
    _Head(b"%PDF-", "a PDF", _AS_TEXT),
    _Head(b"\x89PNG\r\n\x1a\n", "a picture", _NO_TEXT),
    _Head(b"\xff\xd8\xff", "a picture", _NO_TEXT),
    _Head(b"GIF87a", "a picture", _NO_TEXT),
    _Head(b"GIF89a", "a picture", _NO_TEXT),
    _Head(b"II*\x00", "a picture", _NO_TEXT),
    _Head(b"MM\x00*", "a picture", _NO_TEXT),
    _Head(b"RIFF", "a picture, sound or video", _NO_TEXT),
    _Head(b"ID3", "sound", _NO_TEXT),
    _Head(b"OggS", "sound or video", _NO_TEXT),
    _Head(b"fLaC", "sound", _NO_TEXT),
    _Head(b"\xff\xfe", *_UTF16),
    _Head(b"\xfe\xff", *_UTF16),
)
_MEMBERS = (
    (b"/data.pkl", _Head(b"", "a PyTorch file", _TORCH)),
    (b".npy", _Head(b"", "an archive of NumPy arrays (.npz)", _AS_TEXT)),
    (b".xml", _Head(b"", "a spreadsheet or another Office document", _AS_TEXT)),
    (b"mimetype", _Head(b"", "a spreadsheet or another Office document", _AS_TEXT)),
    (b"", _Head(b"", "a zip archive", "unpack it")),
)
"""what the end of the name of a zip archive's first file tells of it"""


def other_kind(head: bytes, wanted: str = "") -> str:
    """Return what a file that begins so is, and what to do, where it is not `wanted` ("parquet",
    "gguf", "gzip" and so on; empty: text). Empty where nothing speaks against it. Example: "is a
    PDF; save it as JSONL or CSV"
    """
    if head.startswith(_POINTER):
        return "is not there yet: it is a pointer of Git LFS; run `git lfs pull`"
    found = _found(head)
    if found is not None:
        return "" if found.kind and found.kind == wanted else f"is {found.what}; {found.way_out}"
    if not wanted:
        return ""
    if not head:
        return "is empty; copy it again"
    rows = "is text; name it .jsonl or .csv if it holds rows, else copy it again"
    return rows if _is_text(head) else ""


def other_kind_of(file: Path, wanted: str = "") -> str:
    """Tell the kind as `other_kind` does; empty for a file that cannot be read."""
    try:
        with file.open("rb") as opened:
            return other_kind(opened.read(HEAD_BYTES), wanted)
    except OSError:
        return ""


def other_text(head: bytes) -> str:
    """Tell the kind, as `other_kind` does, of a text file that belongs to a model or a recipe and
    is not for saving in another form."""
    found = _found(head)
    if found is None or found.what == _UTF16[0]:
        return other_kind(head)
    return f"is {found.what}; give the right file"


def read_text(file: Path) -> str:
    """Return what a person wrote. Raises InputError for what is no text, and names the first line
    which is no UTF-8; OSError."""
    with file.open("rb") as opened:
        data = opened.read(_MOST_TEXT + 1)
    if said := other_text(data[:HEAD_BYTES]):
        raise InputError(f"{file}: {said}")
    if len(data) > _MOST_TEXT:
        raise InputError(f"{file}: has more than {_MOST_TEXT >> 20} MiB; give the right file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{file}: line {line} is not UTF-8 (byte {data[error.start]:#04x}); save the file as"
            " UTF-8"
        ) from None


def _found(head: bytes) -> _Head | None:
    """None for text and for what is not known."""
    for each in _HEADS:
        if head.startswith(each.first) and (len(each.first) > _SURE or not _is_text(head)):
            return each
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        member = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        return next(each for end, each in _MEMBERS if member.endswith(end))
    if head[257:262] == b"ustar":
        return _Head(b"", "a tar archive", "unpack it")
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        is_torch = _OLD_TORCH in head[:16]
        return _Head(
            b"", "an old PyTorch file" if is_torch else "a pickle", _TORCH if is_torch else _AS_TEXT
        )
    if head[4:8] == b"ftyp":
        return _Head(b"", "sound or video", _NO_TEXT)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MOST_HEADER:
        way_out = "give its model's folder as `base.folder`"
        return _Head(b"", "a file of safetensors", way_out, "safetensors")
    if head.lstrip()[:14].lower().startswith(_PAGES):
        return _Head(b"", "a web page or XML, as a failed download leaves", "fetch it again")
    if head and not head.strip(b"\x00"):
        return _Head(b"", "nothing but zeros, as a copy that broke off leaves", "copy it again")
    if head[1:8:2] == bytes(4) and b"\x00" not in head[:8:2]:
        return _Head(b"", *_UTF16)
    return None


def _is_text(head: bytes) -> bool:
    """A letter may be cut off where the head ends."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\x00" not in head


def kind_of(path: str) -> Kind | None:
    """Tell the kind by the name; None for a file that is not read."""
    bare, ending = posixpath.splitext(path.lower())
    if ending in _COMPRESSIONS:
        return _TEXTS.get(posixpath.splitext(bare)[1])
    return _TEXTS.get(ending) or _TABLES.get(ending)


def compression_of(path: str) -> str:
    """Return how a file is compressed; empty if it is not."""
    return _COMPRESSIONS.get(posixpath.splitext(path.lower())[1], "")


def suffix_of(path: str) -> str:
    """Return the suffix without that of its compression, in lower case."""
    bare, ending = posixpath.splitext(path.lower())
    return posixpath.splitext(bare)[1] if ending in _COMPRESSIONS else ending


def require_content(head: bytes, wanted: str, name: str) -> None:
    """Raises InputError for a file that begins as no file of its kind, or of its compression,
    does."""
    if said := other_kind(head, "" if wanted in ("json", "csv") else wanted):
        raise InputError(f"files: {name} {said}. {KINDS_READ}")
