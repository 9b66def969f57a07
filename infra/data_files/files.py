"""The files that a source names: found, fingerprinted, and brought to this machine."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import os
import posixpath
import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import fsspec
from fsspec.compression import compr
from fsspec.implementations.local import LocalFileSystem

from infra.data_files.folders import files_of_folder
from infra.data_files.heads import (
    HEAD_BYTES,
    KINDS_READ,
    Kind,
    compression_of,
    kind_of,
    require_content,
)
from infra.data_files.remembered import forget_unused, recall, remember, state_of
from infra.errors import InputError, StorageError
from infra.home import copy_within_room
from infra.secret_references import plain_address

_WHOLE = 64 << 20
"""bytes up to which the whole file enters its fingerprint"""
_EDGE = 1 << 20
"""bytes of either end of a larger file that do"""
_HASH = f"size and sha256, whole up to {_WHOLE}, else of both ends of {_EDGE}"
_WORTH_KEEPING = 1 << 20
"""bytes of a file below which its hash is found as quickly as what is kept of it"""
_known: dict[tuple[str, str], list[Any]] = {}
"""what `_hashed` found, by a file's URL and its state then: each stage of a plan asks for it"""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as it was found. Example: DataFile(fs, "/data/a.jsonl.gz", "a.jsonl.gz")"""

    fs: Any
    """its fsspec file system"""
    path: str
    """in the file system"""
    name: str
    """for messages and fingerprints: its path below the folder that all of them share"""
    chosen: str = ""
    """where a folder holds more than what is read: which part it is"""

    @property
    def kind(self) -> Kind:
        kind = kind_of(self.path)
        assert kind is not None, self.path
        return kind


def require_names(patterns: Sequence[str]) -> None:
    """Raises InputError where there is none, or an empty one."""
    if not patterns:
        raise InputError("files: none is given; name at least one, e.g. chats.jsonl")
    if not all(pattern.strip() for pattern in patterns):
        raise InputError("files: a name is empty; is a variable of the shell not set?")
    for pattern in patterns:
        if _is_pipe(pattern):
            raise InputError(
                f"files: {pattern} is a pipe, which can be read once, and stages read files again;"
                " write what it gives to a file, and name that"
            )


def _is_pipe(pattern: str) -> bool:
    try:
        return Path(pattern).is_fifo()
    except OSError:  # a name too long, or in a folder that is closed to us: said where it is read
        return False


def find_files(patterns: Sequence[str]) -> list[DataFile]:
    """Find the files in the patterns' order, each once. Raises InputError for a pattern without a
    file, and for a file of a kind that is not read; StorageError where a file system cannot be
    asked."""
    require_names(patterns)
    found: dict[str, tuple[Any, str, str]] = {}
    for pattern in patterns:
        fs, paths, chosen = _matches(pattern)
        for path in paths:
            if kind_of(path) is None:
                raise InputError(f"files: {path} is of no kind that is read. {KINDS_READ}")
            found.setdefault(fs.unstrip_protocol(path), (fs, path, chosen))
    # A bucket's path has no slash in front, a local one has.
    full = [f"/{path.lstrip('/')}" for _, path, _ in found.values()]
    above = posixpath.commonpath([posixpath.dirname(path) for path in full])
    names = [posixpath.relpath(path, above) for path in full]
    return [
        DataFile(fs, p, name, c) for (fs, p, c), name in zip(found.values(), names, strict=True)
    ]


def choices_of(files: Sequence[DataFile]) -> list[str]:
    """Return what was chosen where a folder holds more, in words."""
    return list(dict.fromkeys(file.chosen for file in files if file.chosen))


def _matches(pattern: str) -> tuple[Any, list[str], str]:
    chosen = ""
    try:
        fs, path = fsspec.core.url_to_fs(
            os.path.expanduser(os.path.expandvars(plain_address(pattern)))
        )
        paths = [] if fs.isdir(path) else sorted(p for p in fs.glob(path) if fs.isfile(p))
        # A name may hold what a pattern means otherwise.
        paths = paths or ([path] if fs.isfile(path) else [])
        if not paths and (folder := _folder(fs, path)):
            rest = posixpath.relpath(path, folder).split("/") if path.rstrip("/") != folder else []
            paths, chosen = files_of_folder(fs, folder, rest, pattern)
    except InputError:
        raise
    except Exception as error:  # each file system has errors of its own
        raise _unreadable(pattern, error) from error
    if not paths:
        raise InputError(f"files: no file matches {pattern}{_nearest(fs, path)}")
    return fs, paths, chosen


def _nearest(fs: Any, path: str) -> str:
    """Return what to say of a name that its folder has nearly so, or of a folder that is not
    there."""
    folder, name = posixpath.split(path.rstrip("/"))
    if any(sign in path for sign in "*?["):
        return ""
    try:
        beside = [posixpath.basename(p.rstrip("/")) for p in fs.ls(folder, detail=False)]
    except FileNotFoundError:
        return f"; there is no folder {folder}"
    except Exception:  # each file system has errors of its own, and this one only asks for a hint
        return ""
    close = difflib.get_close_matches(name, beside, n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def _folder(fs: Any, path: str) -> str:
    """The path itself, or the folder above it that holds a data set, of which the path names a
    subset or a split; empty for none."""
    path = path.rstrip("/")
    if fs.isdir(path):
        return path
    for above in (posixpath.dirname(path), posixpath.dirname(posixpath.dirname(path))):
        asked = path.removeprefix(above)
        if any(sign in asked for sign in "*?[") or posixpath.splitext(asked)[1]:
            return ""
        if above and fs.isdir(above):
            return above
    return ""


def fingerprint(patterns: Sequence[str]) -> dict[str, list[Any]]:
    """Size and hash by name: of the whole file up to 64 MiB, of both ends of a larger one."""
    return {f"{number}: {file.name}": _hashed(file) for number, file in _numbered(patterns)}


def files_below(folder: str) -> dict[str, str]:
    """sha256 of every file of a local folder, by its path there; what Python leaves is left out.
    Raises InputError for a folder that is missing or empty."""
    root = Path(folder)
    found = [p for p in sorted(root.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    if not found:
        raise InputError(f"{folder} is no folder with files; give one that the stages reach, too")
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in found
    }


def _numbered(patterns: Sequence[str]) -> Iterator[tuple[int, DataFile]]:
    """With their places: the order of the rows follows from the order of the files."""
    yield from enumerate(find_files(patterns), 1)


def _hashed(file: DataFile) -> list[Any]:
    url = file.fs.unstrip_protocol(file.path)
    state = state_of_source(file)
    if state and (url, state) in _known:
        return _known[url, state]
    found = recall(_HASH, url, state) if state else None
    if found is None:
        found = _read_hash(file)
        if state and found[0] >= _WORTH_KEEPING:
            remember(_HASH, url, state, found)
    if state:
        _known[url, state] = found
    return found


def state_of_source(file: DataFile) -> str:
    """Another one after each change of the file; empty where nothing tells of changes."""
    try:
        if not isinstance(file.fs, LocalFileSystem):
            return str(file.fs.info(file.path).get("ETag", ""))
        return state_of(file.path)
    except Exception as error:  # each file system has errors of its own
        raise _unreadable(file.path, error) from error


def _read_hash(file: DataFile) -> list[Any]:
    try:
        size = int(file.fs.size(file.path))
        ends = [(0, size)] if size <= _WHOLE else [(0, _EDGE), (size - _EDGE, size)]
        found = hashlib.sha256()
        for start, end in ends:
            # By name: S3's second positional argument is a version; an empty range is an error.
            found.update(file.fs.cat_file(file.path, start=start, end=end) if end else b"")
        return [size, found.hexdigest()]
    except Exception as error:
        raise _unreadable(file.path, error) from error


def _unreadable(name: str, error: Exception) -> StorageError:
    said = f"files: {name} cannot be read: {error}"
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        said += (
            ". No complete key for this place is known where the command runs: set"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    return StorageError(said)


def modified(file: DataFile) -> int:
    """Return when a file on this machine was written last, in ns; 0 for one elsewhere."""
    is_here = isinstance(file.fs, LocalFileSystem)
    return os.stat(file.path).st_mtime_ns if is_here else 0


def local_copy(file: DataFile, folder: Path) -> Path:
    """The file on this machine, uncompressed: as it is, or a copy in `folder`, made block by block
    by whoever asks first. A file that changed gets another one; one that nobody read for 30 days is
    removed when a new one is made."""
    if isinstance(file.fs, LocalFileSystem) and not compression_of(file.path):
        return Path(file.path)
    content = json.dumps([file.fs.unstrip_protocol(file.path), _hashed(file), modified(file)])
    copy = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.{file.kind}"
    if copy.exists():
        os.utime(copy)
        return copy
    folder.mkdir(parents=True, exist_ok=True)
    forget_unused(folder)
    draft = copy.with_name(f".{copy.name}.{secrets.token_hex(6)}")  # two stages may begin at once
    try:
        with open_file(file) as source:
            copy_within_room(source, draft, f"files: {file.path}, uncompressed,")
        os.replace(draft, copy)
    except InputError:
        raise
    except Exception as error:
        raise StorageError(f"files: {file.path} cannot be copied: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return copy


def open_file(file: DataFile) -> Any:
    """Open a file for reading bytes, uncompressed. Raises InputError for a file that is not
    compressed as its name says."""
    compression = compression_of(file.path)
    return _unpacked(file, compression) if compression else file.fs.open(file.path, "rb")


@contextmanager
def _unpacked(file: DataFile, compression: str) -> Generator[Any]:
    with file.fs.open(file.path, "rb") as packed:
        head = packed.read(HEAD_BYTES)
        if head:
            require_content(head, compression, file.path)
        whole = io.BufferedReader(Joined(head, packed))
        if compression == "zstd":  # Python has none of its own before 3.14
            import pyarrow as pa

            yield pa.CompressedInputStream(pa.PythonFile(whole, mode="r"), "zstd")
        else:
            with cast("dict[str, Any]", compr)[compression](whole, mode="r") as opened:
                yield opened


class Joined(io.RawIOBase):
    """A file of which the head has been read, from its start: not every one can go back."""

    def __init__(self, head: bytes, rest: Any) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        size = len(buffer)
        read = self._head[:size] or self._rest.read(size)
        self._head = self._head[size:]
        buffer[: len(read)] = read
        return len(read)
