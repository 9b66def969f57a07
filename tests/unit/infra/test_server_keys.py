"""Which key goes to which server: ours never leaves, theirs is kept from others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.access import bearer_of, forget_key, key_of, key_path, note_key

pytestmark = pytest.mark.unit
THEIRS, OURS = "http://10.0.0.2:30000", "http://127.0.0.1:30001"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    key_path().write_text("our-own-key-of-16")
    key_path().chmod(0o600)
    return tmp_path


def test_a_server_of_others_gets_the_key_noted_for_it_and_never_ours() -> None:
    note_key(THEIRS, "their-key")
    assert bearer_of(f"{THEIRS}/") == {"Authorization": "Bearer their-key"}
    assert bearer_of(OURS) == {"Authorization": "Bearer our-own-key-of-16"}
    note_key(THEIRS, "")
    assert bearer_of(THEIRS) == {}
    forget_key(THEIRS)
    assert key_of(THEIRS) == "our-own-key-of-16"


def test_only_its_owner_may_read_it_and_a_dead_processes_note_goes(own_home: Path) -> None:
    note_key(THEIRS, "their-key")
    (noted,) = (own_home / "external-keys").rglob("*.key")
    assert noted.stat().st_mode & 0o077 == 0
    assert noted.parent.stat().st_mode & 0o077 == 0
    orphan = noted.with_name(f"{_dead_pid()}.key")
    orphan.write_text("of a process that was killed")
    note_key(THEIRS, "their-key")
    assert list(noted.parent.iterdir()) == [noted]


def _dead_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid
