"""What a server leaves outside its home is gone soon after it, however it ended."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.devices.child_processes import ChildProcesses
from engines.sglang.servers.server import Server
from engines.sglang.spec import FleetSpec
from infra.processes.leftovers import SHARED_MEMORY, leftovers_of, leftovers_of_dead
from infra.stack.doctor import clean
from tests.parts.machine import until
from tests.parts.tiny import tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcesses]:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    with ChildProcesses(tmp_path / "logs", "engines.sglang.servers.server_launcher") as children:
        yield children


def _serve(children: ChildProcesses, folder: Path, name: str, tp: int = 1) -> Server:
    server = Server(children, name, FleetSpec(), folder, tp)
    server.wait_ready()
    places = {path.parent for path in leftovers_of(server.pid)}
    assert places >= {SHARED_MEMORY}, "it has shared memory under its own name"
    assert len(places) == 2
    return server


def _outside() -> set[Path]:
    return {p for place in (SHARED_MEMORY, Path(tempfile.gettempdir())) for p in place.iterdir()}


def test_nothing_is_left_of_a_server_however_it_ends(
    children: ChildProcesses, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "model")
    before = _outside()
    kept, killed = _serve(children, model, "one"), _serve(children, model, "two", tp=2)
    assert any("_mq_" in path.name for path in leftovers_of(killed.pid)), "what its ranks share"
    assert not [path for path in _outside() - before if path.name.startswith("sgl_shm_mq_")]
    made = {path for server in (killed, kept) for path in leftovers_of(server.pid)}
    assert _outside() - before >= made, "the servers' traces, and others' that come and go"

    os.killpg(killed.pid, signal.SIGKILL)
    # nobody asks for it: its parent notices by itself
    until(lambda: not leftovers_of(killed.pid))
    assert leftovers_of(kept.pid)
    kept.probe()

    assert not leftovers_of_dead()
    assert not [found for found in clean(dry=True) if str(kept.pid) in found.path.name]
    children._process.kill()  # the kernel ends the server, and nobody is left to clear up
    until(lambda: set(leftovers_of_dead()) == set(leftovers_of()) != set())
    clean()
    assert not leftovers_of()
    mine = {path for path in _outside() - before if "sglang" in path.name}
    assert not mine & made
