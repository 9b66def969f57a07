"""A folder that is sent to another host, and what that host makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.devices.units import on_this_host
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactStore
from infra.store.origins import FolderCopy, Origin, note_origin, origin_of, with_config
from infra.store.store import Store

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]
DIGEST = "4" * 64


def _artifact(tmp_path: Path) -> Origin:
    made = tmp_path / "made"
    made.mkdir()
    (made / "config.json").write_text("{}")
    store = Store(str(tmp_path / "store"))
    ArtifactStore(store, tmp_path / "cache").commit(
        "base", DIGEST, 1, made, identity={}, inputs={}, code={}, metrics={}, seeds={},
        mlflow_run_id="", seconds=0.0,
    )  # fmt: skip
    return Origin(root=store.root, kind="base", digest=DIGEST)


def test_the_host_that_sends_a_folder_reads_it_in_place(tmp_path: Path) -> None:
    assert FolderCopy(tmp_path, None).here() == tmp_path


def test_another_host_fetches_the_artifact_that_it_is_a_copy_of(tmp_path: Path) -> None:
    origin = _artifact(tmp_path)
    copy = FolderCopy(Path("/of/another/host"), origin, host="another")
    assert (copy.here() / "config.json").read_text() == "{}"
    assert (on_this_host({"teacher": copy})["teacher"] / "config.json").exists()
    assert on_this_host("text") == "text"


def test_another_host_has_the_config_that_this_one_gave_a_copy(tmp_path: Path) -> None:
    origin = _artifact(tmp_path)
    given = tmp_path / "given"
    given.mkdir()
    for name in ("config.json", "weights"):
        (given / name).write_text(name)
    note_origin(given, origin)
    made = with_config(given, '{"rope_theta": 5}', tmp_path / "scratch" / "model")
    assert (made / "weights").read_text() == "weights"
    assert (given / "config.json").read_text() == "config.json"
    copy = FolderCopy(Path("/of/another/host"), origin_of(made), host="another")
    for _ in range(2):  # as two ranks ask
        assert (copy.here() / "config.json").read_text() == '{"rope_theta": 5}'
    assert (FolderCopy(Path("/none"), origin, "another").here() / "config.json").read_text() == "{}"


def test_a_folder_that_is_no_artifact_must_be_on_every_host(tmp_path: Path) -> None:
    copy = FolderCopy(tmp_path / "absent", None, host="another")
    with pytest.raises(InputError, match=r"absent of host another .* set `storage.root`"):
        copy.here()
    assert replace(copy, path=tmp_path).here() == tmp_path, "a shared file system"


def test_a_copy_says_where_it_came_from(tmp_path: Path) -> None:
    assert origin_of(tmp_path) is None
    origin = Origin(root="s3://bucket/store", kind="base", digest=DIGEST)
    note_origin(tmp_path, origin)
    assert origin_of(tmp_path) == origin


def test_a_damaged_copy_is_fetched_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = _artifact(tmp_path)
    monkeypatch.setattr(Store, "local_path", lambda *_: None)  # as of a store elsewhere
    copy = FolderCopy(Path("/of/another/host"), origin, host="another")
    folder = copy.here()
    assert folder.is_relative_to(home() / "cache")
    (folder / "config.json").write_text("{1}")
    assert (copy.here() / "config.json").read_text() == "{}"
    assert "fetching a damaged copy again" in caplog.text
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]
