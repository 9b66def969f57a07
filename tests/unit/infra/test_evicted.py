"""Copies of a store elsewhere: a host keeps so many bytes of them, and none goes that is used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from infra.errors import InputError
from infra.store import evicted
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.evicted import LIMIT_VARIABLE, evict, hold, limit_bytes
from infra.store.store import Store

pytestmark = pytest.mark.unit

SIZE = 1000


@pytest.fixture
def remote() -> Iterator[Store]:
    """A store that is not local, in this process's memory."""
    yield Store("memory://store")
    fsspec.filesystem("memory").store.clear()


def put(artifacts: ArtifactStore, folder: Path, number: int) -> ArtifactRecord:
    (folder / str(number)).mkdir(parents=True)
    (folder / str(number) / "weights").write_bytes(b"x" * SIZE)
    return artifacts.commit(
        "sft", f"{number:02d}" * 32, 1, folder / str(number), identity={}, inputs={}, code={},
        metrics={}, seeds={}, mlflow_run_id="", seconds=0.0,
    )  # fmt: skip


def used_at(copy: Path, seconds: int) -> None:
    os.utime(copy, (seconds, seconds))


def copies(cache: Path) -> list[str]:
    return sorted(path.parent.name[:2] for path in cache.glob("artifacts/sft/*/a1"))


@pytest.mark.parametrize("inputs", [4, 8, 16])
def test_the_copies_of_a_long_history_stay_below_the_limit(
    tmp_path: Path, remote: Store, monkeypatch: pytest.MonkeyPatch, inputs: int
) -> None:
    """Each input is read by a process of its own, that has ended since."""
    monkeypatch.setenv(LIMIT_VARIABLE, str(3 * SIZE / 1e9))
    monkeypatch.setattr("infra.store.evicted.hold", lambda copy: None)
    artifacts = ArtifactStore(remote, tmp_path / "cache")
    for number in range(inputs):
        folder = artifacts.local(put(artifacts, tmp_path / "made", number))
        used_at(folder, number + 1)
    assert copies(tmp_path / "cache") == [f"{inputs - n:02d}" for n in (3, 2, 1)]


def test_what_was_used_last_stays_and_what_is_gone_is_fetched_again(
    tmp_path: Path, remote: Store
) -> None:
    cache = tmp_path / "cache"
    artifacts = ArtifactStore(remote, cache)
    made = [put(artifacts, tmp_path / "made", number) for number in range(3)]
    for number, record in enumerate(made):
        used_at(artifacts.local(record), number + 1)
    _release()
    artifacts.local(made[0])  # used again
    _release()
    assert evict(cache, 2 * SIZE) == SIZE
    assert copies(cache) == ["00", "02"]
    assert (artifacts.local(made[1]) / "weights").read_bytes() == b"x" * SIZE


def _release() -> None:
    """As if the process had ended."""
    while evicted._held:
        os.close(evicted._held.popitem()[1])


def test_what_another_process_uses_stays_however_much_there_is(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("00", "01"):
        copy = cache / "artifacts" / "sft" / name / "a1"
        copy.mkdir(parents=True)
        (copy / "weights").write_bytes(b"x" * SIZE)
    used = cache / "artifacts" / "sft" / "00" / "a1"
    code = (
        "import sys; from pathlib import Path; from infra.store.evicted import hold;"
        " hold(Path(sys.argv[1])); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(used)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as user:  # fmt: skip
        assert user.stdout is not None
        assert user.stdout.readline() == "held\n"
        assert evict(cache, 0) == SIZE
        assert copies(cache) == ["00"]
        user.communicate("\n")
    assert evict(cache, 0) == SIZE
    assert copies(cache) == []


def test_copies_of_models_of_other_places_count_too_and_drafts_do_not(tmp_path: Path) -> None:
    model, draft = tmp_path / "models" / "ab", tmp_path / "artifacts" / "sft" / "00" / "a1.3f2a"
    for folder in (model, draft):
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * SIZE)
    hold(tmp_path / "models" / "other")
    assert evict(tmp_path, 0) == SIZE
    assert draft.exists()
    assert not model.exists()


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    with pytest.raises(InputError, match=f"TRIBUTARY_CACHE_GB={text}: give a number of gigabytes"):
        limit_bytes()
