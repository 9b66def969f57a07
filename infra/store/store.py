"""The store: any fsspec URL, with create-only writes, checksums, and errors a person can act on.

Paths are relative to the root, with `/`. A missing file is `FileNotFoundError`, a taken name is
`FileExistsError`; all other trouble is a `StorageError` that says what, where, why and what to do.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import fsspec
from fsspec import Callback
from fsspec.implementations.local import LocalFileSystem

from infra.config import Config, PathBelow
from infra.errors import CorruptArtifact, StorageError
from infra.home import home
from infra.shown_text import holds_secret

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_CREDENTIALS = {
    "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
    "InvalidToken", "Forbidden",
}  # fmt: skip
_TAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}


_BROKEN_OFF = {
    "HTTPClientError", "IncompleteReadError", "ClientPayloadError", "ClientConnectionError",
}  # fmt: skip
"""botocore's and aiohttp's errors of a transfer that began, by name: neither is imported here"""

_LASTING = (501, 507)
"""HTTP: not implemented, no room"""
CHUNK_BYTES = 1 << 20
PART_BYTES = 64 * CHUNK_BYTES
"""of a large file, after which progress is told"""
HOME_VARIABLE = "$TRIBUTARY_HOME"
"""in a root it means the home also where the variable is not set"""
TRANSFERS = 8
"""files of one folder that travel side by side"""
OnProgress: TypeAlias = Callable[[], object]


def explain(error: Exception, action: str, place: str) -> StorageError:
    """The error that a person sees. Only a store that is busy or out of reach may be tried again by
    itself."""
    cause, advice, passes = _diagnose(error, place)
    told = StorageError(f"could not {action} {place or 'the store'}: {cause} ({error}). {advice}")
    told.retryable = passes
    return told


def is_name_taken(error: Exception) -> bool:
    """Return whether a create-only write lost: servers say it in several ways."""
    if isinstance(error, FileExistsError) or _code(error) in _TAKEN:
        return True
    # Ceph answers EINVAL with this code in the text.
    return isinstance(error, OSError) and "PreconditionFailed" in str(error)


def _diagnose(error: Exception, place: str) -> tuple[str, str, bool]:
    number = error.errno if isinstance(error, OSError) else None
    remote = "://" in place and not place.startswith("file://")
    if number in _FULL:
        return "the disk or quota is full", "Free space there, or set `storage.root`", False
    if _code(error) == "RequestTimeTooSkewed":
        return "this machine's clock is wrong", "Set it, as by NTP, and run again", False
    if remote and (isinstance(error, PermissionError) or _code(error) in _CREDENTIALS):
        return (
            "the credentials were refused",
            "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) and the bucket's "
            "policy: the account needs the rights to read, list, write and delete",
            False,
        )
    if type(error).__name__ in {"NoCredentialsError", "PartialCredentialsError"}:
        return (
            "there are no complete credentials",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or name a Prefect "
            "Secret block in `storage.credentials`",
            False,
        )
    if number in _REFUSED or isinstance(error, PermissionError):
        return (
            "the place is read-only for this user",
            "Make it writable, or set `storage.root` or TRIBUTARY_HOME to a folder that is",
            False,
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "a part of the path is a file", "Give a folder as `storage.root`", False
    if isinstance(error, FileNotFoundError):
        return (
            "there is no such bucket or folder",
            "Create it first, or correct `storage.root`",
            False,
        )
    if isinstance(error, ConnectionError | TimeoutError) or "Connect" in type(error).__name__:
        return (
            "the store cannot be reached",
            "Check the network and AWS_ENDPOINT_URL, then run again",
            True,
        )
    if remote and _is_busy(error):
        return (
            "the store is busy, or broke the transfer off",
            "Run again; if it persists, ask those who run the store",
            True,
        )
    if isinstance(error, ImportError | ValueError):
        return (
            "this kind of store is not supported",
            "Use file:// or s3://, or install what it needs",
            False,
        )
    return type(error).__name__, "See the cause and run again", False


def _is_busy(error: Exception) -> bool:
    """Return whether the same request may succeed in a moment."""
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    names = {kind.__name__ for kind in type(error).__mro__}
    if status in _LASTING:
        return False
    return status >= 500 or status in (409, 429) or bool(names & _BROKEN_OFF)


def _code(error: BaseException) -> str:
    """The service's own error code."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: BaseException | None) -> dict[str, Any]:
    """Return what the service answered, from the error or what caused it."""
    while error is not None:
        response: Any = getattr(error, "response", None)
        if isinstance(response, dict):
            return response
        error = error.__cause__
    return {}


def _ignore() -> None:
    pass


class FileRecord(Config):
    """One file of a folder. Example: path="model.safetensors", size=1048576, sha256="9f86..." """

    path: PathBelow
    size: int
    sha256: str


class Store:
    """One root, e.g. `file:///data/tributary` or `s3://bucket/prefix`; `~` and `$VAR` are filled
    in. Safe to share between threads."""

    def __init__(self, root: str) -> None:
        expanded = os.path.expanduser(os.path.expandvars(root.replace(HOME_VARIABLE, str(home()))))
        if holds_secret(expanded):
            raise StorageError(
                f"the store's root ({expanded.partition('://')[0]}://...) holds a secret, which "
                "would be written into manifests and logs. Give it in the environment or in "
                "fsspec's own configuration instead"
            )
        with self._explained("open", "", FileNotFoundError):
            # Listings must be true at once: attempts of other processes are found by them.
            self.fs, self._base = fsspec.core.url_to_fs(expanded, use_listings_cache=False)
        self.root: str = self.fs.unstrip_protocol(self._base).rstrip("/")
        self.is_local = isinstance(self.fs, LocalFileSystem)
        self.on_progress: OnProgress = _ignore
        """called after each file that was moved or compared, and after each part of a large one"""

    def read(self, path: str) -> bytes:
        """Whole content. Raises FileNotFoundError."""
        with self._explained("read", path):
            return self.fs.cat_file(self._full(path))

    def create(self, path: str, data: bytes) -> None:
        """Write a file that must not exist yet, whole or not at all, also at a power cut. Raises
        FileExistsError."""
        with self._explained("create", path, FileNotFoundError):
            if self.is_local:
                self._create_local(Path(self._full(path)), data)
            else:
                self._create_remote(self._full(path), data)

    def write(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Write or replace a file, whole or not at all; with `sync` also at a power cut, which
        takes a moment."""
        with self._explained("write", path, FileNotFoundError, FileExistsError):
            if not self.is_local:
                self.fs.pipe_file(self._full(path), data)
                return
            with _draft(Path(self._full(path)), data, sync=sync) as draft:
                os.replace(draft, self._full(path))

    def exists(self, path: str) -> bool:
        with self._explained("look up", path):
            return self.fs.exists(self._full(path))

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty if the folder does not exist."""
        with self._explained("list", path):
            try:
                entries = self.fs.ls(self._full(path), detail=False)
            except FileNotFoundError:
                return []
        names = {str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries}
        # S3 lists a folder's own placeholder; our drafts of atomic writes are nobody's business.
        names.discard(Path(path).name)
        return sorted(name for name in names if not name.startswith("."))

    def delete_tree(self, path: str) -> None:
        """Remove a folder and all in it; nothing happens when there is none."""
        with self._explained("delete", path):
            try:
                self.fs.rm(self._full(path), recursive=True)
            except FileNotFoundError:
                return

    def size_of(self, path: str) -> int:
        """Bytes of all files in a folder; 0 where there is none."""
        with self._explained("look up", path):
            return int(self.fs.du(self._full(path))) if self.fs.exists(self._full(path)) else 0

    def upload_folder(self, local: Path, path: str) -> list[FileRecord]:
        """Copy a local folder's files below `path`; returns them by name with checksums."""
        files = sorted(file for file in local.rglob("*") if file.is_file())
        names = [file.relative_to(local).as_posix() for file in files]
        with self._explained("upload to", path, FileNotFoundError):
            return self._each(lambda name: self._upload(local / name, path, name), names)

    def download_folder(self, path: str, files: Sequence[FileRecord], dest: Path) -> Path:
        """Copy the recorded files to `dest`. Raises CorruptArtifact when one differs."""
        with self._explained("download", path):
            self._each(lambda file: self._download(path, file, dest), list(files))
        return dest

    def local_path(self, path: str) -> Path | None:
        """Return where the path is on this machine, if the store is a local folder."""
        return Path(self._full(path)) if self.is_local else None

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _full(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise StorageError(f"`{path}` leaves the store {self.root}; paths are relative to it")
        return f"{self._base.rstrip('/')}/{path}".rstrip("/")

    def _create_local(self, target: Path, data: bytes) -> None:
        with _draft(target, data, sync=True) as draft:
            os.link(draft, target)  # atomic, and refuses a name that is taken

    def _create_remote(self, target: str, data: bytes) -> None:
        try:
            self.fs.pipe_file(target, data, mode="create")
        except (OSError, ValueError) as error:
            if is_name_taken(error):
                raise FileExistsError(target) from error
            raise

    def _upload(self, source: Path, path: str, name: str) -> FileRecord:
        target = self._full(f"{path}/{name}" if path else name)
        if self.is_local:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            digest = _copy_hashed(source, Path(target), self.on_progress)
        else:
            digest = file_sha256(source, self.on_progress)
            self.fs.put_file(str(source), target, callback=self._callback())
        self.on_progress()
        return FileRecord(path=name, size=source.stat().st_size, sha256=digest)

    def _download(self, path: str, file: FileRecord, dest: Path) -> None:
        target = dest / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            origin = self._full(f"{path}/{file.path}")
            self.fs.get_file(origin, str(target), callback=self._callback())
        except FileNotFoundError:
            target.unlink(missing_ok=True)
        check_file(target, file, self.url(path), self.on_progress)

    def _callback(self) -> Callback:
        """Tells of a transfer's progress as the backend counts it."""
        return Callback(hooks={"progress": lambda *_, **__: self.on_progress()})

    def _each(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        with ThreadPoolExecutor(max(1, min(TRANSFERS, len(items)))) as pool:
            return list(pool.map(work, items))

    @contextmanager
    def _explained(self, action: str, path: str, *also: type[OSError]) -> Generator[None]:
        """Turn the backend's errors into ours. `also` names those that mean no missing or taken
        file here, e.g. a missing bucket."""
        try:
            yield
        except StorageError:
            raise
        except (FileNotFoundError, FileExistsError) as error:
            if not isinstance(error, also):
                raise
            raise explain(error, action, self._place(path)) from error
        except Exception as error:
            raise explain(error, action, self._place(path)) from error

    def _place(self, path: str) -> str:
        return f"{getattr(self, 'root', '')}/{path}".rstrip("/")


def file_sha256(path: Path, on_progress: OnProgress = _ignore) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path, on_progress):
        digest.update(chunk)
    return digest.hexdigest()


def check_file(
    path: Path, record: FileRecord, origin: str, on_progress: OnProgress = _ignore
) -> None:
    """Compare a local file with its record. Raises CorruptArtifact naming it."""
    if not path.is_file():
        found = "is missing"
    elif path.stat().st_size != record.size:
        found = f"has {path.stat().st_size} bytes instead of {record.size}"
    elif file_sha256(path, on_progress) != record.sha256:
        found = "has another checksum than its manifest says"
    else:
        on_progress()
        return
    raise CorruptArtifact(
        f"{origin}/{record.path} {found}: it was changed or damaged after it was written, so it is "
        f"not used. Delete the folder {origin.rsplit('/', 1)[0]} and run again: the stage is redone"
    )


def _copy_hashed(source: Path, target: Path, on_progress: OnProgress) -> str:
    """Copy while hashing: the bytes are read once. They are on the disk before a manifest names
    them, and before what they replace is deleted."""
    digest = hashlib.sha256()
    with target.open("wb") as writer:
        for chunk in _chunks(source, on_progress):
            digest.update(chunk)
            writer.write(chunk)
        _sync(writer)
    return digest.hexdigest()


def _chunks(path: Path, on_progress: OnProgress) -> Generator[bytes]:
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
            done += len(chunk)
            if done % PART_BYTES == 0:
                on_progress()


def _sync(writer: IO[bytes]) -> None:
    writer.flush()
    os.fsync(writer.fileno())


@contextmanager
def _draft(target: Path, data: bytes, *, sync: bool) -> Generator[Path]:
    """A finished, hidden file beside the target, removed afterwards."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        with draft.open("wb") as writer:
            writer.write(data)
            if sync:
                _sync(writer)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
