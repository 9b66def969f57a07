"""Artifacts and checkpoints: whole or not there, one winner, damage noticed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from infra.errors import CorruptArtifact, FencedOut
from infra.home import seal, unseal
from infra.store.artifacts import ArtifactRecord, ArtifactStore, StageCheckpoints
from infra.store.removal import Retention
from infra.store.store import Store
from infra.user_files import UserFiles

pytestmark = pytest.mark.unit

DIGEST = "ab" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def artifacts(store: Store, tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(store, tmp_path / "cache")


def folder(path: Path, text: str = "weights") -> Path:
    (path / "sub").mkdir(parents=True)
    (path / "model").write_text(text)
    (path / "sub" / "config").write_text("{}")
    return path


def commit(
    artifacts: ArtifactStore, source: Path, attempt: int = 1, digest: str = DIGEST
) -> ArtifactRecord:
    return artifacts.commit(
        "sft", digest, attempt, source, identity={"steps": 3}, inputs={"model": "cd" * 32},
        code={"hash": "ef"}, metrics={"loss": 0.5, "odd": math.nan}, seeds={"seed": 1},
        mlflow_run_id="r1", seconds=2.5,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "a/../../../../../../../../../..{}", "x/{}"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_manifest_reaches_no_file_outside_of_its_folder(
    form: str, is_there: bool, artifacts: ArtifactStore, tmp_path: Path
) -> None:
    """Whoever writes to a shared store would have files of its readers overwritten, or deleted."""
    made = commit(artifacts, folder(tmp_path / "out"))
    mine = tmp_path / "mine"
    mine.write_text("precious")
    place = Path(made.url.removeprefix("file://"))
    content = json.loads(unseal((place.parent / "manifest.json").read_bytes()))
    content["files"][0]["path"] = form.format(mine)
    (place.parent / "manifest.json").write_bytes(seal(json.dumps(content).encode()))
    if is_there:
        planted = place / str(mine).lstrip("/")
        planted.parent.mkdir(parents=True)
        planted.write_text("evil")
    with pytest.raises(CorruptArtifact, match="leads out of the folder"):
        artifacts.manifest("sft", DIGEST)
    assert mine.read_text() == "precious"
    with pytest.raises(ValueError, match="leads out"):
        UserFiles(hooks={form.format("/tmp/x.py"): b""})


def test_an_artifact_is_found_with_all_that_made_it(
    artifacts: ArtifactStore, tmp_path: Path
) -> None:
    assert artifacts.find("sft", DIGEST) is None
    made = commit(artifacts, folder(tmp_path / "out"))
    found = artifacts.find("sft", DIGEST)
    assert found is not None
    assert (found.name, found.url, found.mlflow_run_id) == ("sft/abababababab", made.url, "r1")
    assert found.metrics["loss"] == 0.5
    assert math.isnan(found.metrics["odd"])
    assert (artifacts.local(found) / "model").read_text() == "weights"
    manifest = artifacts.manifest("sft", DIGEST)
    assert manifest is not None
    assert manifest.inputs == {"model": "cd" * 32}
    assert [f.path for f in manifest.files] == ["model", "sub/config"]
    assert {"python", "torch"} <= set(manifest.libraries)
    assert [record.digest for record in artifacts.list()] == [DIGEST]


def test_files_without_a_manifest_are_no_artifact(artifacts: ArtifactStore, store: Store) -> None:
    store.write(f"artifacts/sft/{DIGEST[:12]}/a1/model", b"half")
    assert artifacts.find("sft", DIGEST) is None
    assert artifacts.list() == []


def test_the_second_attempt_to_finish_is_fenced_out_and_leaves_nothing(
    artifacts: ArtifactStore, store: Store, tmp_path: Path
) -> None:
    first = commit(artifacts, folder(tmp_path / "one"), attempt=2)
    with pytest.raises(FencedOut):
        commit(artifacts, folder(tmp_path / "two", "other"), attempt=1)
    found = artifacts.find("sft", DIGEST)
    assert found is not None
    assert found.url == first.url
    assert store.listdir(f"artifacts/sft/{DIGEST[:12]}") == ["a2", "manifest.json"]


def test_an_attempt_that_loses_at_the_manifest_is_fenced_out(
    artifacts: ArtifactStore, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(artifacts, folder(tmp_path / "one"), attempt=2)
    monkeypatch.setattr(store, "exists", lambda path: False)  # both had looked before either wrote
    with pytest.raises(FencedOut):
        commit(artifacts, folder(tmp_path / "two", "other"), attempt=1)
    assert store.listdir(f"artifacts/sft/{DIGEST[:12]}") == ["a2", "manifest.json"]


def test_a_damaged_file_is_named_with_what_to_do(artifacts: ArtifactStore, tmp_path: Path) -> None:
    record = commit(artifacts, folder(tmp_path / "out"))
    file = artifacts.local(record) / "model"
    file.write_text("w3ights")
    with pytest.raises(CorruptArtifact, match=r"model has another checksum.*Delete the folder"):
        artifacts.local(record)
    file.unlink()
    with pytest.raises(CorruptArtifact, match="model is missing"):
        artifacts.local(record)


def test_one_file_is_read_without_the_others(
    artifacts: ArtifactStore, store: Store, tmp_path: Path
) -> None:
    assert artifacts.read("sft", DIGEST, "sub/config") is None
    commit(artifacts, folder(tmp_path / "out"))
    assert artifacts.read("sft", DIGEST, "sub/config") == b"{}"
    assert artifacts.read("sft", DIGEST, "other") is None
    place = f"artifacts/sft/{DIGEST[:12]}"
    store.write(f"{place}/a1/sub/config", b"[]")
    with pytest.raises(CorruptArtifact, match=f"config is not what .*Delete the folder .*{place} "):
        artifacts.read("sft", DIGEST, "sub/config")
    store.delete_tree(f"{place}/a1/sub")
    with pytest.raises(CorruptArtifact, match="config is missing"):
        artifacts.read("sft", DIGEST, "sub/config")


def test_unchanged_files_are_hashed_once(
    artifacts: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = commit(artifacts, folder(tmp_path / "out"))
    place = artifacts.local(record)
    hashed: list[Path] = []
    monkeypatch.setattr("infra.store.store.file_sha256", lambda path, _: hashed.append(path) or "")
    assert artifacts.local(record) == place
    assert hashed == []
    os.utime(place / "model", (1, 1))
    with pytest.raises(CorruptArtifact):
        artifacts.local(record)
    assert hashed == [place / "model"]


def test_a_damaged_manifest_is_no_artifact(
    artifacts: ArtifactStore, store: Store, tmp_path: Path
) -> None:
    commit(artifacts, folder(tmp_path / "out"))
    path = f"artifacts/sft/{DIGEST[:12]}/manifest.json"
    whole = store.read(path)
    store.write(path, whole[:-20])
    with pytest.raises(CorruptArtifact, match=r"manifest\.json cannot be read"):
        artifacts.find("sft", DIGEST)
    assert artifacts.list() == []
    store.write(path, whole.replace(DIGEST.encode(), DIGEST[:12].encode() + b"0" * 52))
    with pytest.raises(CorruptArtifact, match="does not agree with its own checksum"):
        artifacts.find("sft", DIGEST)
    store.write(path, whole)
    with pytest.raises(CorruptArtifact, match="not of"):  # another stage that begins alike
        artifacts.find("sft", DIGEST[:12] + "0" * 52)


def test_the_newest_two_checkpoints_are_kept_and_found_by_a_later_attempt(
    store: Store, tmp_path: Path
) -> None:
    first = StageCheckpoints(store, "rl", DIGEST, 1, tmp_path / "scratch")
    assert first.latest() is None
    for step in (5, 10, 15):
        first.save(step, folder(tmp_path / f"step{step}", str(step)))
        assert not (tmp_path / f"step{step}").exists(), "it is moved"
    names = store.listdir(f"checkpoints/rl/{DIGEST[:12]}")
    assert names == ["step-00000010-a1", "step-00000015-a1"]
    found = StageCheckpoints(store, "rl", DIGEST, 2, tmp_path / "scratch2").latest()
    assert found is not None
    assert (found[0], (found[1] / "model").read_text()) == (15, "15")


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ({"last": 1}, [6]),
        ({"last": 3}, [4, 5, 6]),
        ({"last": 1, "every": 2}, [2, 4, 6]),
        ({"last": 1, "best": True}, [3, 6]),
    ],
)
def test_a_policy_says_which_checkpoints_are_kept(
    store: Store, tmp_path: Path, policy: dict[str, int], kept: list[int]
) -> None:
    retention = Retention.model_validate(policy)
    checkpoints = StageCheckpoints(store, "rl", DIGEST, 1, tmp_path / "scratch", retention)
    for step, score in enumerate((0.1, 0.5, 0.9, 0.2, 0.3, 0.4), 1):
        checkpoints.save(step, folder(tmp_path / f"step{step}", str(step)), score)
    names = store.listdir(f"checkpoints/rl/{DIGEST[:12]}")
    assert names == [f"step-{step:08d}-a1" for step in kept]


def test_notes_stay_while_a_kept_checkpoint_may_need_them(store: Store, tmp_path: Path) -> None:
    first = StageCheckpoints(store, "rl", DIGEST, 1, tmp_path / "scratch")
    for step in (1, 2, 3, 4):
        for ticket in (10 * step, 10 * step + 5):
            first.note("rollouts", ticket, b"a%d" % ticket)
            first.note("rollouts", ticket, b"b%d" % ticket)
        first.note("takes", step, b"t%d" % step)
        if step % 2 == 0:
            source = folder(tmp_path / f"step{step}", str(step))
            first.save(step, source, rollouts_from=10 * step + 5)
    second = StageCheckpoints(store, "rl", DIGEST, 2, tmp_path / "scratch")
    second.note("rollouts", 40, b"c40")
    assert second.notes("rollouts", 0, 30) == [b"a25", b"b25", b"a30", b"b30"]
    assert second.notes("rollouts", 40) == [b"a40", b"b40", b"a45", b"b45", b"c40"]
    assert second.notes("rollouts", 46) == []
    assert second.notes("takes", 1) == [b"t1", b"t2", b"t3", b"t4"], "they stay"


def test_the_notes_of_one_number_are_read_without_a_list_of_all_numbers(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = range(1, 41)
    for attempt in (1, 2, 11):
        checkpoints = StageCheckpoints(store, "rl", DIGEST, attempt, tmp_path / "scratch")
        for step in steps:
            if step % attempt == 0:
                checkpoints.note("trained", step, b"%d of %d" % (step, attempt))
    calls = list[str]()
    for name in ("listdir", "read"):
        real = getattr(Store, name)
        monkeypatch.setattr(
            Store, name, lambda self, path, real=real: [calls.append(path), real(self, path)][1]
        )
    found = [checkpoints.notes("trained", step, step) for step in (*steps, 99)]
    newest = [max(a for a in (1, 2, 11) if step % a == 0) for step in steps]
    assert [notes[-1] for notes in found[:-1]] == [
        b"%d of %d" % pair for pair in zip(steps, newest, strict=True)
    ]
    assert found[-1] == []
    assert sum(path.endswith("/trained") for path in calls) == 0
    assert len(calls) == len(found) + sum(map(len, found))


def test_a_half_written_or_damaged_checkpoint_is_passed_over(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = StageCheckpoints(store, "rl", DIGEST, 1, tmp_path / "scratch")
    for step in (1, 2):
        checkpoints.save(step, folder(tmp_path / f"step{step}", str(step)))
    place = f"checkpoints/rl/{DIGEST[:12]}"
    store.write(f"{place}/step-00000003-a1/model", b"half")
    store.write(f"{place}/step-00000002-a1/model", b"x")
    with caplog.at_level("WARNING"):
        found = checkpoints.latest()
    assert found is not None
    assert found[0] == 1
    assert "step-00000003-a1 of checkpoints/rl" in caplog.text
    assert "step-00000002-a1/model has another checksum" in caplog.text


def test_a_checkpoint_that_was_found_damaged_takes_no_other_ones_place(
    store: Store, tmp_path: Path
) -> None:
    def attempt(number: int) -> StageCheckpoints:
        retention = Retention(last=1, best=True)
        return StageCheckpoints(store, "rl", DIGEST, number, tmp_path / "scratch", retention)

    place, first = f"checkpoints/rl/{DIGEST[:12]}", attempt(1)
    first.save(5, folder(tmp_path / "step5"), score=0.9)
    store.write(f"{place}/step-00000005-a1/model", b"x")
    second = attempt(2)
    assert second.latest() is None
    for step in (1, 2):  # it began anew
        second.save(step, folder(tmp_path / f"step{step}", str(step)), score=0.1 * step)
        assert (second.latest() or (0, None))[0] == step
    assert store.listdir(place) == ["step-00000002-a2", "step-00000005-a1"]
    second.save(5, folder(tmp_path / "again"), score=0.5)
    assert (attempt(3).latest() or (0, None))[0] == 5
    assert store.listdir(place) == ["step-00000005-a2"]


def test_a_committed_stage_needs_no_checkpoints(
    artifacts: ArtifactStore, store: Store, tmp_path: Path
) -> None:
    checkpoints = StageCheckpoints(store, "sft", DIGEST, 1, tmp_path / "scratch")
    checkpoints.save(1, folder(tmp_path / "step"))
    commit(artifacts, folder(tmp_path / "out"))
    assert checkpoints.latest() is None


def test_what_killed_attempts_uploaded_goes_once_the_stage_is_done(
    artifacts: ArtifactStore, store: Store, tmp_path: Path
) -> None:
    killed = folder(tmp_path / "killed")
    store.upload_folder(killed, f"artifacts/sft/{DIGEST[:12]}/a1")
    commit(artifacts, folder(tmp_path / "out"), attempt=2)
    place = f"artifacts/sft/{DIGEST[:12]}"
    assert store.listdir(place) == ["a2", "manifest.json"]

    # killed between its manifest and the rest, or saved after the other had committed
    checkpoints = StageCheckpoints(store, "sft", DIGEST, 1, tmp_path / "scratch")
    checkpoints.save(1, folder(tmp_path / "step"))
    store.upload_folder(killed, f"{place}/a3")
    artifacts.tidy("sft", DIGEST)
    assert store.listdir(place) == ["a2", "manifest.json"]
    assert checkpoints.latest() is None


def test_a_stage_that_is_not_done_keeps_all_it_has(
    artifacts: ArtifactStore, store: Store, tmp_path: Path
) -> None:
    checkpoints = StageCheckpoints(store, "sft", DIGEST, 1, tmp_path / "scratch")
    checkpoints.save(1, folder(tmp_path / "step"))
    artifacts.tidy("sft", DIGEST)
    assert checkpoints.latest() is not None
