"""The store on S3 over HTTP, through the real s3fs: on moto's server, and on a Ceph RGW where the
environment names one (marker `rgw`)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engines.weights.disk_delta.delta_manifest import remove_all_but
from infra.errors import CorruptArtifact, FencedOut, StorageError
from infra.processes.network import free_ports
from infra.store.artifacts import ArtifactStore, StageCheckpoints
from infra.store.store import Store, file_sha256
from tasks.base.import_folder import import_model
from tasks.durable.stage_identity import folder_fingerprint
from tests.parts.chat_parts import random_base
from tests.parts.delta_trainer import DeltaTrainer, copy_apart
from tests.parts.s3_services import Service, moto, rgw

pytestmark = pytest.mark.integration

DIGEST = "ab" * 32
MIB = 1 << 20
LARGE_MIB = 101
"""s3fs sends what is over twice its parts of 50 MiB in several"""
NOTHING = {
    "identity": {}, "inputs": {}, "code": {}, "metrics": {}, "seeds": {}, "mlflow_run_id": "",
    "seconds": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module", params=["moto", pytest.param("rgw", marks=pytest.mark.rgw)])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with {"moto": moto, "rgw": rgw}[request.param]() as found:
        yield found


@pytest.fixture
def store(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    service.enter(monkeypatch)
    with service.bucket(f"tributary-test-{secrets.token_hex(6)}") as bucket:
        yield Store(f"s3://{bucket}/a/prefix")


def _object(store: Store, path: str) -> dict[str, str]:
    """Bucket and key of a path, for calls past the store."""
    bucket, _, prefix = store.root.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": f"{prefix}/{path}"}


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


def test_a_name_that_is_taken_stays_as_it_was(store: Store) -> None:
    store.write("claims/1", b"first")
    with pytest.raises(FileExistsError):
        store.create("claims/1", b"second")
    assert store.read("claims/1") == b"first"
    store.delete_tree("claims")
    store.create("claims/1", b"third")
    assert store.read("claims/1") == b"third"


def test_a_large_file_goes_in_parts_and_comes_back_whole(
    store: Store, service: Service, tmp_path: Path
) -> None:
    source = tmp_path / "out"
    source.mkdir()
    with (source / "model").open("wb") as file:
        for number in range(LARGE_MIB):
            file.write(number.to_bytes(4, "big") * (MIB // 4))
    records = store.upload_folder(source, "large")
    head = service.client.head_object(**_object(store, "large/model"))
    assert "-" in head["ETag"], "one part would have a plain checksum"
    assert records[0].size == head["ContentLength"] == LARGE_MIB * MIB
    copy = store.download_folder("large", records, tmp_path / "copy")
    assert file_sha256(copy / "model") == records[0].sha256


def test_a_damaged_file_is_refused(store: Store, service: Service, tmp_path: Path) -> None:
    source = tmp_path / "out"
    source.mkdir()
    (source / "model").write_bytes(b"weights")
    records = store.upload_folder(source, "folder")
    for body, told in ((b"w3ights", "another checksum"), (b"weight", "6 bytes instead of 7")):
        service.client.put_object(**_object(store, "folder/model"), Body=body)
        with pytest.raises(CorruptArtifact, match=told):
            store.download_folder("folder", records, tmp_path / "copy")
    service.client.delete_object(**_object(store, "folder/model"))
    with pytest.raises(CorruptArtifact, match="is missing"):
        store.download_folder("folder", records, tmp_path / "copy")


@pytest.mark.parametrize("wrong", ["access_key", "secret_key"])
def test_refused_credentials_are_explained(
    store: Store, service: Service, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    store.write("claims/1", b"")
    replace(service, **{wrong: "planted-and-wrong"}).enter(monkeypatch)
    stranger = Store(store.root)
    for act in (
        lambda: stranger.read("claims/1"),
        lambda: stranger.create("claims/2", b""),
        lambda: stranger.write("claims/1", b"x"),
        lambda: stranger.listdir("claims"),
    ):
        with pytest.raises(StorageError, match="the credentials were refused") as told:
            act()
        assert not told.value.retryable
        assert service.secret_key not in str(told.value)
    assert store.read("claims/1") == b""


def test_what_another_process_writes_is_seen_at_once(store: Store, service: Service) -> None:
    assert store.listdir("runs") == []
    service.client.put_object(**_object(store, "runs/x"), Body=b"1")
    assert store.listdir("runs") == ["x"]
    service.client.delete_object(**_object(store, "runs/x"))
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


def test_a_missing_bucket_is_explained(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.enter(monkeypatch)
    with pytest.raises(StorageError, match="there is no such bucket"):
        Store(f"s3://tributary-test-{secrets.token_hex(6)}/x").create("claims/1", b"")


def test_an_endpoint_that_is_down_is_explained_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (port,) = free_ports(1)
    Service(f"http://127.0.0.1:{port}", "test", "test").enter(monkeypatch)
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


def test_weights_travel_as_what_changed(store: Store) -> None:
    trainer, copy = DeltaTrainer(store.url("weights")), copy_apart()
    copy.catch_up(trainer.store, trainer.write(1))
    trainer.step("head", "embedding")
    trainer.write(2)
    trainer.step("norm")
    copy.catch_up(trainer.store, trainer.write(3))
    assert trainer.holds(copy)
    remove_all_but(trainer.store, trainer.store.listdir("")[:1])
    assert [name[:8] for name in trainer.store.listdir("")] == ["00000001"]
