"""The store on S3: moto's server over HTTP, through the real s3fs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from infra.artifacts import ArtifactStore, StageCheckpoints
from infra.errors import CorruptArtifact, FencedOut, StorageError
from infra.ports import free_ports
from infra.storage import Store
from tasks.base_import import import_model
from tasks.identity import folder_fingerprint
from tests.chat_parts import random_base

pytestmark = pytest.mark.integration

DIGEST = "ab" * 32
NOTHING = {
    "identity": {}, "inputs": {}, "code": {}, "metrics": {}, "seeds": {}, "mlflow_run_id": "",
    "seconds": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    (port,) = free_ports(1)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Store:
    _point_at(monkeypatch, endpoint)
    bucket = request.node.name.replace("_", "-")[:60].strip("-")
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    return Store(f"s3://{bucket}/a/prefix")


def _point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    S3FileSystem.clear_instance_cache()  # its clients read the environment once a process
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def test_one_creator_wins(store: Store) -> None:
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


def test_what_another_process_writes_is_seen_at_once(store: Store, endpoint: str) -> None:
    assert store.listdir("runs") == []
    client = boto3.client("s3", endpoint_url=endpoint)
    bucket = store.root.removeprefix("s3://").split("/")[0]
    client.put_object(Bucket=bucket, Key="a/prefix/runs/x", Body=b"1")
    assert store.listdir("runs") == ["x"]
    client.delete_object(Bucket=bucket, Key="a/prefix/runs/x")
    assert not store.exists("runs/x")
    with pytest.raises(FileNotFoundError):
        store.read("runs/x")


def test_an_artifact_is_fetched_once_and_verified(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "out"
    (source / "sub").mkdir(parents=True)
    (source / "model").write_bytes(b"weights")
    (source / "sub" / "config").write_text("{}")
    artifacts = ArtifactStore(store, tmp_path / "cache")
    record = artifacts.commit("sft", DIGEST, 1, source, **NOTHING)
    with pytest.raises(FencedOut):
        artifacts.commit("sft", DIGEST, 2, source, **NOTHING)
    assert artifacts.find("sft", DIGEST) == record
    assert [found.url for found in artifacts.list()] == [record.url]
    local = artifacts.local(record)
    assert (local / "sub" / "config").read_text() == "{}"
    store.write(f"artifacts/sft/{DIGEST[:12]}/a1/model", b"w3ights")
    assert artifacts.local(record) == local, "the verified copy serves"
    with pytest.raises(CorruptArtifact, match="model has another checksum"):
        ArtifactStore(store, tmp_path / "other").local(record)


def test_checkpoints_outlive_their_attempt(store: Store, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        (folder / "state").write_text(str(step))
        StageCheckpoints(store, "rl", DIGEST, 1, tmp_path / "one").save(step, folder)
    found = StageCheckpoints(store, "rl", DIGEST, 2, tmp_path / "two").latest()
    assert found is not None
    assert (found[0], (found[1] / "state").read_text()) == (3, "3")
    assert len(store.listdir(f"checkpoints/rl/{DIGEST[:12]}")) == 2


def test_a_missing_bucket_is_explained(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _point_at(monkeypatch, endpoint)
    with pytest.raises(StorageError, match="there is no such bucket"):
        Store("s3://nobody-made-this/x").create("claims/1", b"")


def test_an_endpoint_that_is_down_is_explained_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (port,) = free_ports(1)
    _point_at(monkeypatch, f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StorageError, match="cannot be reached") as told:
        Store("s3://bucket/x").read("claims/1")
    assert told.value.retryable


def test_a_model_folder_is_imported_from_s3_with_its_empty_files(
    store: Store, tmp_path: Path
) -> None:
    made = random_base(tmp_path / "made")
    (made / "added_tokens.txt").touch()
    store.upload_folder(made, "models/small")
    (tmp_path / "copy").mkdir()
    metrics = import_model(store.url("models/small"), tmp_path / "copy")
    assert metrics["parameters"] > 0
    assert folder_fingerprint(store.url("models/small")) == folder_fingerprint(str(made))
    for file in made.iterdir():
        assert (tmp_path / "copy" / file.name).read_bytes() == file.read_bytes()
