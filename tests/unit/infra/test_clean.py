"""`tributary doctor --clean` removes what nobody owns, and nothing else."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from flows.command.app import CommandConsole
from flows.command.main import main
from flows.command.stack import clean_records
from infra.errors import InfrastructureError
from infra.home import home, runtime_dir
from infra.processes import leftovers
from infra.processes.children import ProcessRecord, birth_of
from infra.processes.leftovers import (
    note_torch_memory,
    private_folder,
    temporary_folder,
    trace_name,
)
from infra.processes.work_folder import work_folder, work_path
from infra.sandbox.python import scratch_folder
from infra.stack.doctor import clean
from infra.stack.record import load_record, new_stack, save_record, stack_lock
from tests.parts.machine import until

pytestmark = pytest.mark.unit


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home, and a folder in place of /dev/shm."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", folder)
    yield folder
    clean()


@pytest.fixture(scope="module")
def dead() -> int:
    """The pid of a process that was."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _found() -> set[Path]:
    return {leftover.path for leftover in clean(dry=True)}


def test_a_process_that_ended_and_was_not_waited_for_is_dead(memory: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    shared = memory / f"sglang_loads_{trace_name(process.pid)}_ab12cd34.shm"
    shared.touch()
    assert _found() == set()
    process.stdin.close()
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert _found() == {shared}
    process.wait()


def test_traces_of_the_dead_go_and_those_of_the_living_stay(memory: Path, dead: int) -> None:
    mine: list[Path] = []
    for pid in (os.getpid(), dead):
        folder = private_folder(pid)
        folder.mkdir()
        (folder / "socket").touch()
        shared = memory / f"sglang_loads_{trace_name(pid)}_ab12cd34.shm"
        torch = memory / f"torch_{pid}_77_0"
        for file in (shared, torch):
            file.touch()
        note_torch_memory(f"/{torch.name}")
        mine += [folder, shared, home() / "shared-memory" / torch.name, torch]
    kept, gone = mine[:4], mine[4:]
    assert _found() == set(gone[:3])
    assert all(path.exists() for path in mine), "a dry look changes nothing"
    clean()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)
    leftovers.remove_leftovers(kept)


def test_who_comes_next_removes_what_the_killed_left(memory: Path, dead: int) -> None:
    """A rank that was killed again and again would fill the host's shared memory."""
    left, own = memory / f"torch_{dead}_1_0", memory / f"torch_{os.getpid()}_2_0"
    for file in (left, own):
        file.touch()
        note_torch_memory(file.name)
    private_folder(dead).mkdir()
    code = (
        "import sys; from pathlib import Path; from infra.processes import leftovers;"
        "leftovers.SHARED_MEMORY = Path(sys.argv[1]); leftovers.claim_private_folder();"
        "import tempfile; print(tempfile.mkdtemp())"
    )
    command = [sys.executable, "-c", code, str(memory)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert not left.exists()
    assert not private_folder(dead).exists()
    assert own.exists()
    assert _found() == {Path(said.strip()).parent}, "its own folder, for it is gone as well"


def test_a_killed_jobs_folder_is_told_from_a_living_ones(memory: Path) -> None:
    code = (
        "import os, sys; from infra.processes.work_folder import work_folder;"
        "w = work_folder(sys.argv[1]);"
        "(w.__enter__() / 'checkpoint').mkdir(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, "killed"], check=True)
    with work_folder("lives") as mine:
        assert _found() == {work_path("killed")}
        clean()
        assert not work_path("killed").exists()
        assert mine == work_path("lives")
        assert mine.exists()
    assert list(mine.parent.iterdir()) == []


def test_a_temporary_folder_of_a_killed_process_is_found(memory: Path) -> None:
    code = (
        "import os; from infra.processes.leftovers import temporary_folder;"
        "f = temporary_folder(); print(f.__enter__(), flush=True); os.kill(os.getpid(), 9)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    with temporary_folder() as mine:
        assert mine.is_dir()
        assert _found() == {Path(said.strip())}
    assert not mine.exists()


def test_another_homes_things_stay_but_for_memory_that_its_dead_left_long_ago(
    memory: Path, dead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(tmp_path / "other"))
        folder = private_folder(dead)
        shared = memory / f"sglang_loads_{trace_name(dead)}_ab12cd34.shm"
        sockets = runtime_dir()
    unknown = [memory / f"torch_{dead}_1_0", memory / "sglang_loads_0c11b3e2b20a_6f4b4f34.shm"]
    for path in (folder, sockets):
        path.mkdir()
    for path in (shared, *unknown):
        path.touch()
    try:
        assert not _found()
        clean()
        assert all(path.exists() for path in (folder, sockets, shared, *unknown))
        alive = memory / f"sglang_loads_tributary-0badc0de-{os.getpid()}_ab12cd34.shm"
        alive.touch()
        for path in (folder, sockets, shared, alive, *unknown):
            os.utime(path, (1.0, 1.0))  # long ago: only memory that nobody can use goes
        clean()
        assert not shared.exists()
        assert all(path.exists() for path in (folder, sockets, alive, *unknown))
    finally:
        folder.rmdir()
        sockets.rmdir()


def test_a_pid_that_only_begins_like_a_dead_ones_is_another(memory: Path) -> None:
    """tributary-x-12 is no trace of tributary-x-123's owner."""
    longer = memory / f"sglang_loads_{trace_name(os.getpid())}0_x.shm"
    longer.touch()
    assert longer not in leftovers.leftovers_of(os.getpid())


def test_a_stack_that_died_with_its_machine_is_forgotten(memory: Path, dead: int) -> None:
    record = ProcessRecord(pid=dead, birth="another boot:1", log=memory / "log")
    save_record(new_stack(None).model_copy(update={"services": {"ray": record}}))
    (runtime_dir() / "ray").mkdir(parents=True)
    draft = home() / f"stack.{dead}"
    draft.touch()
    assert _found() == {home() / "stack.json", runtime_dir(), draft}
    clean()
    stack = load_record()
    assert stack is not None
    assert not stack.services
    assert not runtime_dir().exists()
    assert not _found()


def test_a_living_stack_keeps_its_record_and_its_sockets(memory: Path) -> None:
    me = psutil.Process()
    record = ProcessRecord(pid=me.pid, birth=birth_of(os.getpid()), log=memory / "log")
    save_record(new_stack(None).model_copy(update={"services": {"ray": record}}))
    runtime_dir().mkdir()
    assert not _found()
    clean()
    assert runtime_dir().exists()
    runtime_dir().rmdir()


def test_sockets_that_a_process_names_stay_though_no_record_does(memory: Path) -> None:
    runtime_dir().mkdir()
    command = [sys.executable, "-c", "input()", f"--temp-dir={runtime_dir()}/ray"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        assert not _found()
    finally:
        process.communicate()
    assert _found() == {runtime_dir()}


def test_old_drafts_go_and_new_ones_stay(memory: Path) -> None:
    place = home() / "store" / "runs"
    place.mkdir(parents=True)
    old, new, other = (place / n for n in (".a.json.0123456789ab", ".b.json.0123456789ab", ".keep"))
    for path in (old, new, other):
        path.touch()
    copies = home() / "cache" / "artifacts" / "rl" / "0123456789ab"
    copy, part, young = (copies / name for name in ("a1", "a1.3f2a", "a2.3f2b"))
    for folder in (copy, part, young):
        folder.mkdir(parents=True)
    for path in (old, other, copy, part):
        os.utime(path, (1, 1))
    assert _found() == {old, part}


def test_a_sandbox_that_is_used_stays_and_one_left_by_a_crash_goes(memory: Path) -> None:
    made = "from infra.sandbox.python import scratch_folder as s; f = s(); f.__enter__()"
    crash = f"import os; {made}; os._exit(0)"
    subprocess.run([sys.executable, "-c", crash], check=True)
    with scratch_folder() as mine:
        (left,) = _found()
        assert "sandbox" in left.name
        clean()
        assert not left.exists()
        assert Path(mine).exists()


def test_the_command_says_what_it_removed(
    memory: Path, dead: int, capsys: pytest.CaptureFixture[str]
) -> None:
    left = memory / f"sglang_loads_{trace_name(dead)}_ab12cd34.shm"
    left.touch()
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--clean"])
    said = capsys.readouterr().out.replace("\n", "")
    assert left.name in said
    assert ended.value.code in (0, 1)
    assert not left.exists()


def test_what_removed_rows_left_in_a_database_is_room_for_others_and_can_be_given_back(
    memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a server that has the file open, as Prefect's has."""
    del memory
    file = home() / "prefect" / "prefect.db"
    file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(file)) as server:
        server.execute("PRAGMA journal_mode=WAL")
        server.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, message TEXT)")
        sizes: list[int] = []
        for _ in range(4):
            server.executemany("INSERT INTO log (message) VALUES (?)", [("x" * 800,)] * 2000)
            server.execute("DELETE FROM log WHERE id NOT IN (SELECT id FROM log LIMIT 10)")
            server.commit()
            server.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            sizes.append(file.stat().st_size)
        assert max(sizes) <= 1.05 * sizes[0]
        assert clean_records(None, yes=False, json=True, console=CommandConsole()) == 0
        told = json.loads(capsys.readouterr().out)
        free = told["free"]
        assert told["logs"] == {"files": 0, "bytes": 0}
        assert free > 0.8 * sizes[-1]
        assert file.stat().st_size == sizes[-1], "nothing happens unasked"
        assert clean_records(None, yes=True, json=False, console=CommandConsole()) == 0
        assert f"{free / 1e6:.1f} MB removed" in capsys.readouterr().out
        assert file.stat().st_size < sizes[-1] / 10
        assert server.execute("SELECT COUNT(*) FROM log").fetchone() == (10,)


def test_who_waits_for_a_stack_that_another_works_on_is_told_whom_it_waits_for(
    memory: Path,
) -> None:
    home().mkdir(parents=True, exist_ok=True)
    told = pytest.raises(InfrastructureError, match=rf"process {os.getpid()}\b")
    with stack_lock(), told, stack_lock(wait_s=0.2):
        pass
    with stack_lock(wait_s=0.2):
        assert (home() / "stack.lock").read_text() == str(os.getpid())
