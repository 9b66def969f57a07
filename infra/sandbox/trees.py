"""Folders that untrusted code fills: measured, emptied, packed and unpacked, with any content."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping

BLOCK = 4096
"""bytes that the smallest file or folder counts for"""
DEEPEST = 64
_IMMEASURABLE = 1 << 62
_LENGTH = struct.Struct(">I")


def used(folder: str) -> int:
    """Bytes of the files below a folder that is being written to.

    Far more than any quota where folders are too deep to follow or cannot be read.
    """
    total = 0
    pending = [(folder, 0)]
    while pending:
        place, depth = pending.pop()
        if depth > DEEPEST:
            return _IMMEASURABLE
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    size, is_folder = _size(entry)
                    total += size
                    if is_folder:
                        pending.append((entry.path, depth + 1))
        except FileNotFoundError:
            continue
        except OSError:
            return _IMMEASURABLE
    return total


def remove(folder: str) -> None:
    """Remove a tree of any depth and any modes."""
    empty(folder)
    os.rmdir(folder)


def empty(folder: str) -> None:
    """Remove all below a folder: each subfolder is first brought to the top."""
    with contextlib.suppress(PermissionError):  # another's who lets us write: we cannot lock it
        os.chmod(folder, 0o700)
    # names that the code cannot have taken
    names = (f".{os.urandom(16).hex()}" for _ in itertools.count())
    while inner := [entry for entry in os.scandir(folder) if _clear(entry)]:
        for entry in inner:
            os.chmod(entry.path, 0o700)
            for child in [child for child in os.scandir(entry.path) if _clear(child)]:
                os.chmod(child.path, 0o700)  # a folder that moves gets another parent written
                os.rename(child.path, os.path.join(folder, next(names)))
            os.rmdir(entry.path)


def pack(folder: str, most: int) -> bytes:
    """Files, folders and symbolic links below `folder`; raises ValueError beyond `most` bytes.

    Format: the length of an index (32 bits, big-endian), the index, the files one after another.
    The index is JSON: rows [path, mode, size], and [path, mode, target] of a link.
    """
    index: list[list[str | int]] = []
    contents: list[bytes] = []
    left = most
    for path, relative in _walk(folder):
        status = os.lstat(path)
        left -= BLOCK
        if stat.S_ISLNK(status.st_mode):
            index.append([relative, status.st_mode, os.readlink(path)])
        elif stat.S_ISDIR(status.st_mode):
            index.append([relative, status.st_mode, 0])
        elif stat.S_ISREG(status.st_mode):
            content = read_file(path, max(left, 0))
            left -= len(content)
            index.append([relative, status.st_mode, len(content)])
            contents.append(content)
        if left < 0:
            raise ValueError(f"the files are more than {most} bytes")
    return _packed(index, contents)


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Return what `pack` gives of a folder with just these files, by their relative path."""
    folders = {folder for path in files for folder in _parents(path)}
    index: list[list[str | int]] = []
    index += [[folder, stat.S_IFDIR | 0o755, 0] for folder in sorted(folders)]
    index += [[path, stat.S_IFREG | 0o644, len(content)] for path, content in files.items()]
    return _packed(index, list(files.values()))


def unpack(packed: bytes, folder: str) -> None:
    """Write what was packed into an empty folder. Paths are as untrusted as their writer."""
    (size,) = _LENGTH.unpack_from(packed)
    position = _LENGTH.size + size
    for relative, mode, last in json.loads(packed[_LENGTH.size : position]):
        path = os.path.join(folder, relative)
        if stat.S_ISLNK(mode):
            os.symlink(last, path)
        elif stat.S_ISDIR(mode):
            _make_folders(path)
            os.chmod(path, 0o700 | stat.S_IMODE(mode))
        else:
            write_file(path, packed[position : position + last], stat.S_IMODE(mode))
            position += last


def read_file(path: str, most: int) -> bytes:
    """Return a regular file; raises OSError, and ValueError for another kind or beyond `most`
    bytes.
    """
    # a pipe would wait for a writer
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most} bytes")
    return content


def write_file(path: str, content: bytes, mode: int = 0o644) -> None:
    """A file that replaces what has its name, in folders that are made; raises OSError."""
    _make_folders(os.path.dirname(path))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.write(content)


def _make_folders(path: str) -> None:
    """`os.makedirs` calls itself for each folder, and would end at a thousand."""
    missing: list[str] = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)


def _packed(index: list[list[str | int]], contents: list[bytes]) -> bytes:
    text = json.dumps(index).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *contents])


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    """Path and relative path of all below a folder, a folder before what is in it, in order."""
    pending = [folder]
    while pending:
        place = pending.pop()
        inner: list[str] = []
        with os.scandir(place) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            yield entry.path, entry.path[len(folder) + 1 :]
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
        pending += reversed(inner)


def _parents(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _clear(entry: os.DirEntry[str]) -> bool:
    """Unlinks what is no folder; True for a folder."""
    if entry.is_dir(follow_symlinks=False):
        return True
    os.unlink(entry.path)
    return False


def _size(entry: os.DirEntry[str]) -> tuple[int, bool]:
    with contextlib.suppress(FileNotFoundError):
        blocks = entry.stat(follow_symlinks=False).st_blocks * 512
        return max(BLOCK, blocks), entry.is_dir(follow_symlinks=False)
    return 0, False
