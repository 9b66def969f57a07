"""A folder is whole or not there, and one that exists stays the folder that it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.errors import InputError
from infra.home import new_folder

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["deep/new", "empty", "."])
def test_a_new_or_empty_folder_is_filled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    if name == ".":
        monkeypatch.chdir(tmp_path / "empty")
    else:
        monkeypatch.chdir(tmp_path)
    target = Path(name)
    before = target.stat().st_ino if target.exists() else None
    with new_folder(target) as draft:
        (draft / "a").write_text("a")
        (draft / "sub").mkdir()
    assert sorted(path.name for path in target.iterdir()) == ["a", "sub"]
    assert before in (None, target.stat().st_ino), "a shell may be in it"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    def fail(target: Path) -> None:
        with new_folder(target) as draft:
            (draft / "a").write_text("a")
            raise ZeroDivisionError

    for name in ("new", "empty"):
        with pytest.raises(ZeroDivisionError):
            fail(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_what_is_taken_is_refused_also_when_it_is_taken_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for taken in ("file", ".", "file/below"):
        with pytest.raises(InputError, match="give another folder"), new_folder(tmp_path / taken):
            pass
    (tmp_path / "empty").mkdir()

    def take_meanwhile(target: Path) -> None:
        with new_folder(target) as draft:
            (draft / "a").write_text("a")
            target.mkdir(exist_ok=True)
            (target / "mine").write_text("mine")

    for name in ("empty", "new"):
        with pytest.raises(InputError, match="changed while it was written"):
            take_meanwhile(tmp_path / name)
        assert [path.name for path in (tmp_path / name).iterdir()] == ["mine"]
