"""The store on a local folder: whole writes, create-only, and errors that say what to do."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError, ServerDisconnectedError
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
)
from s3fs.errors import translate_boto_error

from infra.errors import CorruptArtifact, StorageError
from infra.store import store as store_module
from infra.store.store import Store, explain, is_name_taken
from infra.store.verified import VerifiedFiles, verified_copy

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_transfer_tells_of_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", 2 << 20)
    store = Store(str(tmp_path / "store") if kind == "local" else f"memory://{tmp_path.name}")
    told: list[int] = []
    store.on_progress = lambda: told.append(1)
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(bytes(5 << 20))
    (source / "small").write_bytes(b"x")
    files = store.upload_folder(source, "folder")
    assert len(told) >= 4, "two files, and two parts of the large one"
    told.clear()
    store.download_folder("folder", files, tmp_path / "copy")
    assert len(told) >= 4
    told.clear()
    copy = tmp_path / "verified"
    verified_copy(store, "folder", files, copy, VerifiedFiles(tmp_path / "notes"))
    assert len(told) >= 4
    told.clear()
    verified_copy(store, "folder", files, copy, VerifiedFiles(tmp_path / "notes"))
    assert not told, "nothing has changed"


def test_of_many_creators_exactly_one_wins(tmp_path: Path) -> None:
    store = Store(str(tmp_path))

    def create(number: int) -> bool:
        try:
            store.create("claims/1", str(number).encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert store.read("claims/1") == str(won.index(True)).encode()
    assert store.listdir("claims") == ["1"], "no drafts are left"


def test_a_write_replaces_and_a_missing_file_is_a_file_not_found(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    store.write("a/b", b"1")
    store.write("a/b", b"2")
    assert store.read("a/b") == b"2"
    with pytest.raises(FileNotFoundError):
        store.read("a/c")
    assert store.listdir("nowhere") == []
    store.delete_tree("a")
    store.delete_tree("a")
    assert not store.exists("a/b")


def test_a_stored_file_may_be_read_by_whom_the_umask_lets_read(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    (source / "model.safetensors").touch(0o600)  # as safetensors writes it
    before = os.umask(0o027)
    try:
        Store(str(tmp_path / "store")).upload_folder(source, "x")
    finally:
        os.umask(before)
    assert (tmp_path / "store/x/model.safetensors").stat().st_mode & 0o777 == 0o640


def test_a_folder_comes_back_as_it_went(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "a.bin").write_bytes(bytes(range(256)) * 9000)
    (source / "sub" / "b").write_text("b")
    store = Store(str(tmp_path / "store"))
    files = store.upload_folder(source, "x/y")
    assert [f.path for f in files] == ["a.bin", "sub/b"]
    copy = store.download_folder("x/y", files, tmp_path / "copy")
    assert (copy / "a.bin").read_bytes() == (source / "a.bin").read_bytes()
    (tmp_path / "store/x/y/sub/b").write_text("c")
    with pytest.raises(CorruptArtifact, match="sub/b has another checksum"):
        store.download_folder("x/y", files, tmp_path / "again")


def test_the_home_in_a_root_needs_no_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIBUTARY_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("file://$TRIBUTARY_HOME/store").root == f"file://{tmp_path}/.tributary/store"


def test_a_path_that_leaves_the_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="leaves the store"):
        Store(str(tmp_path)).read("../secret")


def test_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with _largest_file(1000), pytest.raises(StorageError, match="disk or quota is full") as told:
        store.create("claims/1", b"x" * 5000)
    assert "storage.root" in str(told.value)
    assert store.listdir("claims") == []


def test_a_read_only_store_says_what_to_do() -> None:
    with pytest.raises(StorageError, match=r"could not create file:///proc/tributary/claims/1"):
        Store("/proc/tributary").create("claims/1", b"")
    refused = explain(OSError(errno.EROFS, "Read-only file system"), "create", "file:///store/a")
    assert "read-only" in str(refused)
    assert "TRIBUTARY_HOME" in str(refused)


def test_a_root_below_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        Store(str(tmp_path / "file" / "store")).write("a", b"")


def test_an_unknown_kind_of_store_is_refused() -> None:
    with pytest.raises(StorageError, match="this kind of store is not supported"):
        Store("quux://bucket")


@pytest.mark.parametrize("code", ["AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"])
def test_refused_credentials_are_named_and_never_retried(code: str) -> None:
    told = explain(_client_error(code), "write", "s3://bucket/a")
    assert "credentials were refused" in str(told)
    assert "AWS_ACCESS_KEY_ID" in str(told)
    assert not told.retryable


@pytest.mark.parametrize(
    ("code", "status", "passes"),
    [
        ("SlowDown", 503, True),
        ("InternalError", 500, True),
        ("502", 502, True),
        ("OperationAborted", 409, True),
        ("TooManyRequests", 429, True),
        ("NotImplemented", 501, False),
        ("InsufficientStorage", 507, False),
        ("InvalidRequest", 400, False),
    ],
)
def test_what_a_service_will_do_in_a_moment_may_be_tried_again(
    code: str, status: int, passes: bool
) -> None:
    """S3's error as s3fs hands it on: an OSError that the service's answer has caused."""
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = translate_boto_error(ClientError(answer, "PutObject"))  # pyrefly: ignore[bad-argument-type]
    told = explain(error, "upload to", "s3://bucket/a")
    assert told.retryable is passes
    assert ("the store is busy" in str(told)) is passes


@pytest.mark.parametrize(
    "error",
    [
        ReadTimeoutError(endpoint_url="http://x"),
        IncompleteReadError(actual_bytes=1, expected_bytes=2),
        ClientPayloadError("not enough data"),
        ServerDisconnectedError(),
    ],
)
def test_a_transfer_that_broke_off_may_be_tried_again(error: Exception) -> None:
    assert explain(error, "download", "s3://bucket/a").retryable


def test_a_wrong_clock_is_not_taken_for_wrong_credentials() -> None:
    told = explain(
        translate_boto_error(_client_error("RequestTimeTooSkewed")), "read", "s3://bucket/a"
    )
    assert "this machine's clock is wrong" in str(told)
    assert "AWS_ACCESS_KEY_ID" not in str(told)


def test_an_unreachable_store_may_be_tried_again() -> None:
    assert explain(EndpointConnectionError(endpoint_url="http://x"), "read", "s3://b/a").retryable
    missing = explain(NoCredentialsError(), "read", "s3://b/a")
    assert "no complete credentials" in str(missing)
    assert not missing.retryable


def test_servers_say_taken_in_several_ways() -> None:
    wrapped = OSError(errno.EINVAL, "Invalid argument")
    wrapped.__cause__ = _client_error("PreconditionFailed")
    assert is_name_taken(wrapped)
    assert is_name_taken(FileExistsError())
    assert not is_name_taken(OSError(errno.EINVAL, "Invalid argument"))


def _client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "PutObject")


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """Writes beyond `size` bytes fail as on a full quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_password_in_the_root_is_refused_and_not_repeated() -> None:
    with pytest.raises(StorageError, match="holds a secret") as told:
        Store("ftp://someone:hunter2@host/folder")
    assert "hunter2" not in str(told.value)


def test_what_must_outlive_a_power_cut_is_on_the_disk_before_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(number: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        assert not any(store.exists(name) for name in ("manifest.json", "kept")), "seen too early"

    monkeypatch.setattr(os, "fsync", sync)
    store = Store(str(tmp_path / "store"))
    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "model"):
        (source / name).write_bytes(b"x")
    store.upload_folder(source, "a1")
    assert sorted(synced) == ["config.json", "model"]
    synced.clear()
    store.write("pulse", b"1")
    assert not synced, "what is written each second does not wait for the disk"
    store.create("manifest.json", b"{}")
    store.delete_tree("manifest.json")
    store.write("kept", b"{}", sync=True)
    assert [name.split(".")[1] for name in synced] == ["manifest", "kept"]
