"""Whose home it is: clones on one machine never share a stack by accident."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from infra.errors import InputError
from infra.home import SOURCE_ROOT, home, runtime_dir, stack_temporary_dir, write_whole
from infra.processes.children import ProcessRecord, birth_of
from infra.processes.leftovers import private_folder
from infra.stack import up
from infra.stack.record import load_record, new_stack, require_ours, save_record

pytestmark = pytest.mark.unit


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default home of a user without one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRIBUTARY_HOME", raising=False)
    return tmp_path / ".tributary"


def _recorded_by(source: Path) -> None:
    save_record(new_stack(None).model_copy(update={"source": str(source)}))


def test_the_default_home_is_shared_while_nobody_else_has_it(shared: Path) -> None:
    assert home() == shared
    _recorded_by(SOURCE_ROOT)
    assert home() == shared


def test_a_second_clone_gets_a_home_of_its_own(shared: Path, tmp_path: Path) -> None:
    home()
    before = runtime_dir()
    (tmp_path / "other").mkdir()
    _recorded_by(tmp_path / "other")
    assert home().parent == shared / "clones"
    assert load_record() is None
    assert runtime_dir() != before


def test_the_home_of_a_clone_that_is_gone_is_taken_over(shared: Path, tmp_path: Path) -> None:
    home()
    _recorded_by(tmp_path / "deleted")
    assert home() == shared


def test_who_keeps_temporary_files_with_the_stack_finds_the_stack(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow that found another folder would look for the jobs' logs there."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        ours = runtime_dir()
        assert ours.parent == Path(base)
        for folder in (stack_temporary_dir(), private_folder(77), private_folder(77) / "inner"):
            monkeypatch.setattr(tempfile, "tempdir", str(folder))
            assert runtime_dir() == ours
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert runtime_dir().parent == Path("/tmp"), "too long for Ray's sockets"


def test_a_damaged_record_owns_nothing(shared: Path) -> None:
    (home() / "stack.json").write_text("[]")
    assert home() == shared


def test_up_refuses_a_home_in_which_another_clone_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    running = ProcessRecord(pid=os.getpid(), birth=birth_of(os.getpid()), log=tmp_path / "log")
    other = new_stack(None).model_copy(
        update={"source": str(tmp_path / "other"), "services": {"ray": running}}
    )
    save_record(other)
    with pytest.raises(InputError, match=f"{tmp_path / 'other'}.*tributary down"):
        up()
    assert load_record() == other


def test_another_python_environment_is_another_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    ours = new_stack(None)
    require_ours(ours)
    with pytest.raises(InputError, match="/elsewhere"):
        require_ours(ours.model_copy(update={"environment": "/elsewhere"}))


def test_ports_that_others_took_meanwhile_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    before = new_stack(None)
    with socket.create_server(("127.0.0.1", before.ports["mlflow"])):
        after = new_stack(before)
    assert after.ports["mlflow"] not in before.ports.values()
    kept = {k: v for k, v in before.ports.items() if k != "mlflow"}
    assert {k: v for k, v in after.ports.items() if k != "mlflow"} == kept


def test_who_reads_a_file_while_it_is_replaced_sees_the_old_one_whole(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "note.json"
    write_whole(file, "old and longer")
    with file.open() as reader:
        write_whole(file, b"new")
        assert reader.read() == "old and longer"
    assert file.read_text() == "new"
    assert [each.name for each in file.parent.iterdir()] == ["note.json"], "no draft is left"
