"""Folders and files of this user: others can read nothing of them, and put nothing into them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.errors import InputError
from infra.home import close_to_others, home, own_folder, read_own_file, runtime_dir, write_own_file
from infra.processes.children import find, start, terminate
from infra.processes.leftovers import claim_private_folder, private_folder
from infra.processes.secret_file import hand_over, take_over
from infra.stack import up

pytestmark = pytest.mark.unit

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a second user")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    folder = runtime_dir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def by_another(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell's program as a second user of this machine."""
    command = ["/bin/sh", "-c", program, "sh", *map(str, arguments)]
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    assert mode(own_folder(tmp_path / "new")) == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    assert mode(own_folder(tmp_path / "open")) == 0o700


def test_a_folder_that_others_may_have_changed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(InputError, match="other users may write"):
        own_folder(tmp_path / "shared")
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(InputError, match="or a link to one"):
        own_folder(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is no folder"):
        own_folder(tmp_path / "file")


@as_root
def test_a_runtime_folder_that_another_user_made_first_is_refused_before_anything_starts(
    runtime: Path,
) -> None:
    program = 'mkdir -p "$1/handover" && chmod 777 "$1"'
    assert by_another(program, runtime).returncode == 0
    for use in (up, lambda: hand_over("job", {"A_TOKEN": "x"}), lambda: take_over("job")):
        with pytest.raises(InputError, match=r"belongs to another user.*set TMPDIR"):
            use()
    assert list((runtime / "handover").iterdir()) == []


@as_root
def test_a_process_refuses_a_temporary_folder_that_another_user_made_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/nowhere")
    folder = private_folder(os.getpid())
    assert by_another('mkdir "$1"', folder).returncode == 0
    try:
        with pytest.raises(InputError, match="belongs to another user"):
            claim_private_folder()
    finally:
        folder.rmdir()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "PATH", "RAY_ADDRESS", "a_token"])
def test_what_decides_what_runs_is_not_taken_for_a_secret(name: str, runtime: Path) -> None:
    hand_over("job", {"A_TOKEN": "x"})
    (runtime / "handover" / "job").write_text(json.dumps({name: "/evil.so"}))
    before = dict(os.environ)
    with pytest.raises(InputError, match=f"`{name}`"):
        take_over("job")
    assert dict(os.environ) == before


def test_a_file_of_secrets_is_no_link_and_closed_to_others(tmp_path: Path) -> None:
    write_own_file(tmp_path / "file", "text")
    assert mode(tmp_path / "file") == 0o600
    assert read_own_file(tmp_path / "file") == "text"
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(InputError, match="is not read"):
        read_own_file(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InputError, match="no file of yours"):
        read_own_file(tmp_path / "pipe")
    for wrong in (0o640, 0o602):
        (tmp_path / "file").chmod(wrong)
        with pytest.raises(InputError, match="chmod 600"):
            read_own_file(tmp_path / "file")
    if os.geteuid() == 0:
        (tmp_path / "file").chmod(0o600)
        os.chown(tmp_path / "file", NOBODY, NOBODY)
        with pytest.raises(InputError, match="no file of yours"):
            read_own_file(tmp_path / "file")


def test_what_a_process_of_the_stack_writes_is_for_this_user_alone(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys; os.mkdir('made');"
        "subprocess.run([sys.executable, '-c', 'open(\"made/file\", \"w\").close()'], check=True)"
    )
    log = tmp_path / "logs" / "log"
    record = start([sys.executable, "-c", program], dict(os.environ), log, tmp_path)
    deadline = time.monotonic() + 30
    while (process := find(record)) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process is not None:
        terminate([process], 1.0)
    assert (mode(tmp_path / "made"), mode(tmp_path / "made" / "file")) == (0o700, 0o600)
    assert mode(log) == 0o600


@as_root
def test_a_second_user_reads_nothing_of_a_home(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    assert mode(home()) == 0o700
    (home() / "store").mkdir()
    (home() / "store" / "rollout").write_text("canary")
    read = 'cat "$1"'
    assert "Permission denied" in by_another(read, home() / "store" / "rollout").stderr
    home().chmod(0o755)  # made by an earlier version
    assert "canary" in by_another(read, home() / "store" / "rollout").stdout
    close_to_others(home())
    assert "Permission denied" in by_another(read, home() / "store" / "rollout").stderr


@as_root
def test_a_home_on_a_volume_of_another_user_stays_as_it_is(tmp_path: Path) -> None:
    home().chmod(0o770)
    os.chown(home(), NOBODY, NOBODY)
    close_to_others(home())
    assert mode(home()) == 0o770
