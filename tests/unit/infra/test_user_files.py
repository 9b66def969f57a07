"""The user's own files travel whole, and what they read beside them is named."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import pytest

from infra.code.undeclared_reads import undeclared_reads, watch_reads
from infra.errors import InputError
from infra.user_files import (
    UserFiles,
    data_path,
    install_hooks,
    read_hooks,
    same_names,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRIBUTARY_DATA", "")
    # What is in the system's folder for temporary files is nobody's data.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    mine = tmp_path / "mine"
    mine.mkdir()
    return mine


def test_a_package_folder_travels_with_its_other_files_and_without_rubbish(folder: Path) -> None:
    package = folder / "expert_of_mine"
    for name in ("__init__.py", "words.txt", "deep/more.bin", "__pycache__/x.pyc", ".git/config"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes(b"\xff\n")
    read = read_hooks([str(package)])
    assert sorted(read.hooks) == [
        "expert_of_mine/__init__.py", "expert_of_mine/deep/more.bin", "expert_of_mine/words.txt",
    ]  # fmt: skip
    assert UserFiles.model_validate_json(read.model_dump_json()) == read


def test_files_folders_and_patterns_are_found_by_their_names(folder: Path) -> None:
    for name in ("one.txt", "lists/a.txt", "more/b.csv", "more/c.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    named = [str(folder / name) for name in ("one.txt", "lists", "more/*.csv")]
    install_hooks(read_hooks([], named))
    for name, text in {
        "one.txt": "one.txt",
        "lists/a.txt": "lists/a.txt",
        "c.csv": "more/c.csv",
    }.items():
        assert data_path(name).read_text() == text
    with pytest.raises(InputError, match=r"'two.txt' is not declared.*b.csv, c.csv, lists/a.txt"):
        data_path("two.txt")


@pytest.mark.parametrize(("hooks", "data"), [(["no.py"], []), ([], ["no.txt"])])
def test_what_is_missing_is_named(folder: Path, hooks: list[str], data: list[str]) -> None:
    with pytest.raises(InputError, match="is missing"):
        read_hooks([str(folder / name) for name in hooks], [str(folder / name) for name in data])


def test_two_data_files_of_one_name_are_refused(folder: Path) -> None:
    paths = [folder / name / "words.txt" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("")
    with pytest.raises(InputError, match=r"a/words.txt and .*b/words.txt have the same name"):
        read_hooks([], [str(path) for path in paths])


def test_more_than_a_job_can_carry_is_refused(folder: Path) -> None:
    with (folder / "large.bin").open("wb") as file:
        file.truncate(1 << 40)  # it is not read to see this
    with pytest.raises(InputError, match="are 1048576 MiB together, but only 64 MiB can"):
        read_hooks([], [str(folder / "large.bin")])


READER = """
from pathlib import Path
from infra.user_files import data_path
def undeclared(path):
    return Path(path).read_text()
def declared():
    return data_path("words.txt").read_text()
def writes(path):
    Path(path).write_text("x")
"""


def test_a_hook_that_reads_an_undeclared_file_is_named_once(folder: Path) -> None:
    for name in ("words.txt", "other.txt"):
        (folder / name).write_text("ant")
    (folder / "reader_of_mine.py").write_text(READER)
    words, other = str(folder / "words.txt"), folder / "other.txt"
    user = install_hooks(read_hooks([str(folder / "reader_of_mine.py")], [words]))
    said: list[str] = []
    watch_reads(user, said.append)
    try:
        hook = importlib.import_module("reader_of_mine")
        hook.declared()
        hook.writes(folder / "new.txt")
        other.read_text()  # not by a hook
        assert said == []
        hook.undeclared(other)
        hook.undeclared(other)
        hook.undeclared("/proc/self/status")
        assert len(said) == 1
        assert f"reader_of_mine.py reads {other}" in said[0]
        assert undeclared_reads() == said
    finally:
        watch_reads(install_hooks(UserFiles()))
    assert undeclared_reads() == []


@pytest.mark.parametrize("second", ["b/cfg.py", "c/cfg"])
def test_two_hooks_of_one_name_are_refused_with_both_paths(tmp_path: Path, second: str) -> None:
    paths = [tmp_path / "a/cfg.py", tmp_path / second]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("") if path.suffix else path.mkdir()
    named = [str(path) for path in paths]
    with pytest.raises(InputError) as refused:
        read_hooks(named)
    assert all(path in str(refused.value) for path in named)
    assert list(same_names([named[0], named[0]])) == []


def test_what_a_part_wrote_into_its_data_is_put_right_for_the_next_stage(folder: Path) -> None:
    """Else the next stage would read it under the digest of what the recipe lists."""
    (folder / "words.txt").write_text("one two")
    (folder / "hook_of_mine.py").write_text("WORDS = 2\n")
    files = read_hooks([str(folder / "hook_of_mine.py")], [str(folder / "words.txt")])
    installed = install_hooks(files).folder
    assert installed is not None
    with data_path("words.txt").open("a") as file:
        file.write(" three")
    (installed / "hook_of_mine.py").write_bytes(b"")  # as a power cut leaves it
    assert install_hooks(files).folder == installed
    assert data_path("words.txt").read_text() == "one two"
    assert (installed / "hook_of_mine.py").read_text() == "WORDS = 2\n"
    assert [file.name for file in data_path("words.txt").parent.iterdir()] == ["words.txt"]
