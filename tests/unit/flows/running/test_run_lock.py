"""A run that is going on is followed, never started a second time."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.command.app import CommandConsole
from flows.command.run_command import continue_run
from flows.load import load_recipe
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState
from flows.running.run_lock import is_running, working_on
from infra.errors import InputError, StageFailed
from infra.processes.children import ProcessRecord, birth_of
from infra.stack.record import new_stack, save_record
from tests.parts.json_server import serving

pytestmark = pytest.mark.unit


class Api(ThreadingHTTPServer):
    """Answers what the command asks of Prefect, and remembers what was posted."""

    flow_state = "COMPLETED"
    failing = 0
    """how many of the next reads fail"""
    busy = 0
    """how many of the next posts are turned away"""
    meanwhile: Callable[[], object] = bool
    """done at each read"""
    posted: list[tuple[str, str]]
    """path and idempotency key"""
    bodies: list[dict[str, Any]]


class _Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        state = {"type": self.server.flow_state, "timestamp": "2026-01-01T00:00:00Z"}
        self.server.meanwhile()
        self.server.failing -= 1
        self._reply({"id": "deployment", "state": state}, 200 if self.server.failing < 0 else 500)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.posted.append((self.path, body.get("idempotency_key", "")))
        self.server.bodies.append(body)
        self.server.busy -= 1
        self._reply({"id": "started"}, 200 if self.server.busy < 0 else 503)

    def _reply(self, body: object, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A stack of which only Prefect's API is asked."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    stack = new_stack(None)
    alive = ProcessRecord(pid=os.getpid(), birth=birth_of(os.getpid()), log=tmp_path)
    save_record(stack.model_copy(update={"services": {"prefect-server": alive}}))
    server = Api(("127.0.0.1", stack.ports["prefect"]), _Handler)
    server.posted, server.bodies = [], []
    with serving(server):
        yield server


@pytest.fixture
def record(api: Api) -> RunRecord:
    record = new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=False)
    record.put_state(RunState(state="running", flow_run="before"))
    return record


def test_a_run_belongs_to_one_process_until_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    code = (
        "import time\nfrom flows.running.run_lock import working_on\n"
        "with working_on('one'):\n    print('working', flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"working\n"
        assert is_running("one")
        assert not is_running("two")
        with pytest.raises(InputError, match="already running"), working_on("one"):
            pass
        child.kill()
    assert not is_running("one")
    with working_on("one"):
        assert is_running("one")


@pytest.mark.parametrize(
    ("flow_run", "given_up", "ended"),
    [("its", [], True), ("other", ["its"], True), ("other", [], False), ("", ["its"], False)],
)
def test_a_flow_ends_the_hanging_process_of_its_own_or_a_lost_flow_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flow_run: str,
    given_up: list[str],
    ended: bool,
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setattr("flows.running.run_lock.GIVE_WAY_SECONDS", 0.3)
    code = (
        "import os, signal\nfrom flows.running.run_lock import working_on\n"
        "with working_on('one', 'its'):\n    print(flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        if ended:
            with working_on("one", flow_run, given_up.__contains__):
                assert child.wait(10) == -signal.SIGKILL
        else:
            told = f"in process {child.pid}"
            with (
                pytest.raises(InputError, match=told),
                working_on("one", flow_run, given_up.__contains__),
            ):
                pass
            assert child.poll() is None
        child.kill()


def test_a_run_whose_flow_prefect_gave_up_is_started_though_its_process_lives(
    api: Api, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.flow_state = "CRASHED"
    monkeypatch.setattr("flows.command.run_command.LOST_SECONDS", 0.5)
    with working_on(record.run), pytest.raises(StageFailed):
        continue_run(record.run, CommandConsole(quiet=True))
    assert record.state().flow_run == "started"


def test_the_run_is_no_parameter_of_its_flow_run(api: Api, record: RunRecord) -> None:
    """Prefect's page copies parameters and nothing else: a copy is a run of its own."""
    continue_run(record.run, CommandConsole(quiet=True))
    (body,) = api.bodies
    assert set(body["parameters"]) == {"recipe"}
    assert body["labels"] == {"tributary.run": record.run}


@pytest.mark.parametrize("held", [True, False])
def test_resume_follows_a_run_that_is_going_on(api: Api, record: RunRecord, held: bool) -> None:
    with ExitStack() as stack:
        if held:
            stack.enter_context(working_on(record.run))
        continue_run(record.run, CommandConsole(quiet=True))
    assert bool(api.posted) is not held
    assert record.state().flow_run == ("before" if held else "started")


@pytest.mark.parametrize(("waits", "starts"), [("SCHEDULED", False), ("PENDING", True)])
def test_a_flow_that_is_about_to_start_is_followed(
    api: Api, record: RunRecord, waits: str, starts: bool
) -> None:
    """One that has been pending for ages lost its worker."""
    from flows.running.prefect_api import PrefectApi

    api.flow_state = waits
    port = api.server_address[1]
    assert PrefectApi(f"http://127.0.0.1:{port}/api").is_waiting("before") is not starts


def test_a_server_that_fails_for_a_while_ends_no_command(api: Api, record: RunRecord) -> None:
    """The run goes on without it."""
    api.failing = 2
    console = CommandConsole(record=True, quiet=False, file=io.StringIO())
    with working_on(record.run):
        continue_run(record.run, console)
    assert console.export_text().count("this command cannot see it") == 1
    assert api.failing < 0


def test_a_busy_server_is_asked_again_and_starts_one_flow(api: Api, record: RunRecord) -> None:
    """Prefect on SQLite turns a write away while another one is going on."""
    from flows.running.prefect_api import PrefectApi

    api.busy = 2
    assert PrefectApi(f"http://127.0.0.1:{api.server_address[1]}/api").start("expert", {}, "x")
    keys = [key for _, key in api.posted]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0]


def test_a_flow_without_a_process_is_lost_before_prefect_sees_it(
    api: Api, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker died with it, so that nobody told Prefect."""
    monkeypatch.setattr("flows.command.run_command.LOADING_SECONDS", 1.0)
    api.flow_state = "RUNNING"
    with pytest.raises(StageFailed, match=r"LOST: its process is gone\n.*tributary resume"):
        continue_run(record.run, CommandConsole(quiet=True))
    assert record.state().state == "failed"


def test_a_flow_that_was_lost_leaves_a_failed_run(api: Api, record: RunRecord) -> None:
    api.flow_state = "CRASHED"
    with pytest.raises(StageFailed, match="tributary resume"):
        continue_run(record.run, CommandConsole(quiet=True))
    assert record.state().state == "failed"


def test_a_run_that_another_flow_completed_has_not_failed(api: Api, record: RunRecord) -> None:
    """The followed one gave way to it."""
    api.flow_state = "FAILED"
    done = RunState(state="completed", flow_run="other")
    api.meanwhile = lambda: record.put_state(done)
    continue_run(record.run, CommandConsole(quiet=True))
    assert record.state().state == "completed"
