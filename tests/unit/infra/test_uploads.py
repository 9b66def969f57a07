"""A checkpoint of which other hosts put their files into the store themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from infra.store.uploads import destination_of, elsewhere, note_elsewhere

pytestmark = pytest.mark.unit
DIGEST = "6" * 64


def _folder(at: Path, **files: str) -> Path:
    at.mkdir(parents=True)
    for name, text in files.items():
        (at / name).write_text(text)
    return at


def _checkpoints(store: Store, scratch: Path) -> StageCheckpoints:
    return StageCheckpoints(store, "rl", DIGEST, 1, scratch)


def test_its_manifest_names_the_files_of_all_hosts_and_it_is_read_as_one(tmp_path: Path) -> None:
    store = Store(f"memory://{tmp_path.name}")
    folder = _folder(tmp_path / "checkpoint-1", state="step 1")
    trainer = _folder(folder / "trainer", shard0="of the job's host")
    there = _folder(tmp_path / "on-another-host", shard1="of another host")
    checkpoints = _checkpoints(store, tmp_path / "scratch")
    checkpoints.begin(1, folder)
    destination = destination_of(trainer)
    assert destination is not None
    note_elsewhere(trainer, destination, destination.upload(there))
    assert checkpoints.latest() is None, "it is not complete yet"
    checkpoints.save(1, folder)
    step, copy = checkpoints.latest() or (0, tmp_path)
    found = {file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()}
    assert (step, found) == (1, {"state", "trainer/shard0", "trainer/shard1"})
    assert (copy / "trainer/shard1").read_text() == "of another host"
    assert destination_of(trainer) is None
    assert not list(tmp_path.glob("*.json")), "the notes are gone"


def test_what_another_host_put_there_for_a_save_that_failed_is_gone(tmp_path: Path) -> None:
    store = Store(f"memory://{tmp_path.name}")
    folder = _folder(tmp_path / "checkpoint-1", state="step 1")
    checkpoints = _checkpoints(store, tmp_path / "scratch")
    checkpoints.begin(1, folder)
    destination = destination_of(folder)
    assert destination is not None
    note_elsewhere(folder, destination, destination.upload(_folder(tmp_path / "other", old="x")))
    checkpoints.begin(1, folder)  # again, as after an error
    assert elsewhere(folder) == []
    checkpoints.save(1, folder)
    _, copy = checkpoints.latest() or (0, tmp_path)
    assert [file.name for file in copy.iterdir()] == ["state"]
    assert store.listdir(destination.path) == ["manifest.json", "state"]


def test_hosts_do_not_reach_a_local_store_themselves(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "checkpoint-1", state="step 1")
    checkpoints = _checkpoints(Store(str(tmp_path / "store")), tmp_path / "scratch")
    checkpoints.begin(1, folder)
    assert destination_of(folder) is None
    checkpoints.save(1, folder)
    assert checkpoints.latest() is not None
