"""Children of a process parent: forks of what it loaded once; none outlives its owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engines.devices import child_processes
from engines.devices.child_processes import ChildProcesses
from engines.devices.host_agent import HostAgent
from infra.errors import EngineError
from infra.processes import leftovers
from infra.processes.leftovers import trace_name
from tests.parts.machine import until

pytestmark = pytest.mark.unit


@pytest.fixture
def children(tmp_path: Path) -> Iterator[ChildProcesses]:
    with ChildProcesses(tmp_path / "logs", "tests.parts.preloaded_part") as children:
        yield children


def test_a_server_is_a_fork_of_what_its_parent_loaded(
    children: ChildProcesses, tmp_path: Path
) -> None:
    file, log = tmp_path / "file", tmp_path / "log"
    pid = children.serve({"name": "one", "file": str(file)}, log)
    until(lambda: file.exists() and file.read_text())
    loaded_by, parent = file.read_text().split()
    assert loaded_by == parent
    assert log.read_text() == "serving one\n"
    assert children.exit_code(pid) is None
    children.stop(pid)
    assert children.exit_code(pid) == -9
    assert not psutil.pid_exists(pid)


def test_a_program_says_how_it_ended(children: ChildProcesses, tmp_path: Path) -> None:
    pid = children.run(["sh", "-c", "echo out; exit 3"], tmp_path / "log")
    until(lambda: children.exit_code(pid) is not None)
    assert children.exit_code(pid) == 3
    assert (tmp_path / "log").read_text() == "out\n"


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_children_end_with_their_parent(
    children: ChildProcesses, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = children.run(["sleep", "60"], tmp_path / "log")
    child = psutil.Process(pid)
    left = tmp_path / f"sglang_loads_{trace_name(pid)}_ab12cd34.shm"
    left.touch()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    if how == "closed":
        children.close()
    else:
        child.parent().kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    if how == "killed":
        with pytest.raises(EngineError, match="parent of engine processes ended; "):
            children.run(["true"], tmp_path / "log")
        assert children.exit_code(pid) == -9
        children.stop(pid, grace=1.0)
        children.close()
        assert not left.exists()


def test_a_late_reply_is_not_taken_for_that_to_a_later_request(
    children: ChildProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = children.run(["sleep", "60"], tmp_path / "log")
    parent = psutil.Process(pid).parent()
    assert parent is not None
    parent.suspend()
    with monkeypatch.context() as patched:
        patched.setattr(child_processes, "_REPLY_S", 0.1)
        for ask in (
            lambda: children.exit_code(pid),
            lambda: children.run(["sleep", "50"], tmp_path / "log"),
        ):
            with pytest.raises(EngineError, match="gave no answer"):
                ask()
    parent.resume()
    assert children.exit_code(pid) is None
    ended = children.run(["sh", "-c", "exit 3"], tmp_path / "log")
    until(lambda: children.exit_code(ended) is not None)
    assert children.exit_code(ended) == 3
    until(lambda: [child.pid for child in parent.children()] == [pid])  # nobody knew of the other


def test_an_agent_has_one_parent_for_each_program_and_starts_it_anew(tmp_path: Path) -> None:
    agent = HostAgent(tmp_path, 0)
    try:
        first = agent.children()
        assert agent.children() is first
        agent.end_children()
        assert not first.is_alive
        second = agent.children()
        child = psutil.Process(second.run(["sleep", "60"], tmp_path / "log"))
        child.parent().kill()
        until(lambda: not second.is_alive)
        assert agent.children().run(["true"], tmp_path / "log") > 0
    finally:
        agent.close()
