"""50 random corruptions of artifacts and of checkpoints: each is noticed, none is used."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.errors import CorruptArtifact
from infra.store.artifacts import ArtifactRecord, ArtifactStore, StageCheckpoints
from infra.store.store import Store

pytestmark = pytest.mark.unit

CORRUPTIONS = 50
DIGESTS = ["ab" * 32, "cd" * 32]
Damage = Callable[[Path, random.Random], str]


def _flip(folder: Path, rng: random.Random) -> str:
    file = _one(folder, rng)
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"flipped a bit of {file.name}"


def _truncate(folder: Path, rng: random.Random) -> str:
    file = _one(folder, rng)
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data))])
    return f"truncated {file.name}"


def _extend(folder: Path, rng: random.Random) -> str:
    file = _one(folder, rng)
    file.write_bytes(file.read_bytes() + b"x" * rng.randint(1, 9))
    return f"extended {file.name}"


def _delete(folder: Path, rng: random.Random) -> str:
    file = rng.choice([f for f in _files(folder) if f.name != "manifest.json"])
    file.unlink()
    return f"deleted {file.name}"


def _swap(folder: Path, rng: random.Random) -> str:
    one, other = rng.sample(_files(folder), 2)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    return f"swapped {one.name} and {other.name}"


def _tear(folder: Path, rng: random.Random) -> str:
    """As after a power cut: the length is there and the end was never written."""
    manifest = next(folder.rglob("manifest.json"))
    data = manifest.read_bytes()
    cut = rng.randrange(len(data))
    manifest.write_bytes(data[:cut] + bytes(len(data) - cut))
    return "tore the manifest"


def _forge(folder: Path, rng: random.Random) -> str:
    """Still good JSON with good types, but another number."""
    manifest = next(folder.rglob("manifest.json"))
    fields = json.loads(manifest.read_text())
    name = rng.choice([k for k, v in fields.items() if isinstance(v, int | float)])
    fields[name] += 1
    manifest.write_text(json.dumps(fields))
    return f"changed the manifest's {name}"


DAMAGES: list[Damage] = [_flip, _flip, _flip, _truncate, _extend, _delete, _swap, _tear, _forge]


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _one(folder: Path, rng: random.Random) -> Path:
    return rng.choice([file for file in _files(folder) if file.stat().st_size])


def _source(folder: Path, rng: random.Random) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(rng.randbytes(5000))
    (folder / "config.json").write_text(json.dumps({"hidden_size": rng.randrange(10**6)}))
    (folder / "sub" / "tokenizer.json").write_bytes(rng.randbytes(300))
    return folder


def _commit(artifacts: ArtifactStore, digest: str, folder: Path) -> ArtifactRecord:
    return artifacts.commit(
        "sft", digest, 1, folder, identity={"steps": 3}, inputs={"model": "ef" * 32},
        code={"hash": "12"}, metrics={"loss": 0.5}, seeds={"seed": 1}, mlflow_run_id="r1",
        seconds=2.5,
    )  # fmt: skip


def _use(artifacts: ArtifactStore, told: str) -> None:
    """As the next stage does."""
    found = artifacts.find("sft", DIGESTS[0])
    assert found is not None, told
    artifacts.local(found)
    pytest.fail(f"used although somebody {told}")


@pytest.mark.parametrize("seed", range(CORRUPTIONS))
@pytest.mark.parametrize("seen_before", [False, True])
def test_a_damaged_artifact_is_refused_and_its_neighbour_serves(
    seed: int, seen_before: bool, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    artifacts = ArtifactStore(Store(str(tmp_path / "store")), tmp_path / "cache")
    records = [_commit(artifacts, d, _source(tmp_path / d[:2], rng)) for d in DIGESTS]
    if seen_before:
        for record in records:
            artifacts.local(record)
    place = tmp_path / "store" / "artifacts" / "sft"
    told = rng.choice(DAMAGES)(place / DIGESTS[0][:12], rng)
    with pytest.raises(CorruptArtifact, match=DIGESTS[0][:12]) as caught:
        _use(artifacts, told)
    assert "run again: the stage is redone" in str(caught.value)
    assert (artifacts.local(records[1]) / "config.json").is_file()


@pytest.mark.parametrize("seed", range(CORRUPTIONS))
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    store = Store(str(tmp_path / "store"))
    checkpoints = StageCheckpoints(store, "rl", DIGESTS[0], 1, tmp_path / "scratch")
    for step in (5, 10):
        checkpoints.save(step, _source(tmp_path / str(step), rng))
    place = tmp_path / "store" / "checkpoints" / "rl" / DIGESTS[0][:12]
    before = {file.name: file.read_bytes() for file in _files(place / "step-00000005-a1")}
    told = rng.choice(DAMAGES)(place / "step-00000010-a1", rng)
    with caplog.at_level(logging.WARNING):
        found = checkpoints.latest()
    assert found is not None, told
    step, folder = found
    assert step == 5, told
    assert {file.name: file.read_bytes() for file in _files(folder)} == before
    assert "step-00000010-a1" in caplog.text
