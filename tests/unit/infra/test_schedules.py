"""Schedules that are on stay on, also when `up` is interrupted while it registers deployments."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.errors import InfrastructureError
from infra.stack.ports import PARTS
from infra.stack.prefect_server import ask
from infra.stack.record import Stack
from infra.stack.schedules import note_schedules, restore_schedules

pytestmark = pytest.mark.unit

WEEKLY: dict[str, Any] = {
    "id": "s1", "slug": "weekly", "active": True, "schedule": {"cron": "0 6 * * 1"},
    "parameters": {"expert": "agent"},
}  # fmt: skip
DEPLOYMENTS: list[dict[str, Any]] = [{"id": "d1", "name": "distill-rounds", "schedules": [WEEKLY]}]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stack, Any]]:
    """What answers where a stack's Prefect would, and its deployments."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    deployments = json.loads(json.dumps(DEPLOYMENTS))

    class Api(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            known = self.path == "/api/deployments/filter"
            self._answer(200 if known else 404, deployments if known else {})

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert self.path == "/api/deployments/d1/schedules/s1"
            deployments[0]["schedules"][0].update(body)
            self._answer(200, {})

        def _answer(self, status: int, body: Any) -> None:
            self.rfile.read(int(self.headers["content-length"])) if self.command == "POST" else b""
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        ports = dict.fromkeys(PARTS, 1) | {"prefect": listening.server_address[1]}
        yield Stack(mark="m", ports=ports), deployments
        listening.shutdown()
        thread.join()


def switch_off(deployments: Any) -> None:
    """As a registration does."""
    deployments[0]["schedules"][0].update(active=False, parameters={})


def test_what_was_on_is_on_again(server: tuple[Stack, Any]) -> None:
    stack, deployments = server
    note_schedules(stack)
    switch_off(deployments)
    restore_schedules(stack)
    assert deployments == DEPLOYMENTS


def test_an_interrupted_registration_loses_no_schedule(server: tuple[Stack, Any]) -> None:
    stack, deployments = server
    note_schedules(stack)
    switch_off(deployments)  # and here `up` is killed
    note_schedules(stack)
    restore_schedules(stack)
    assert deployments == DEPLOYMENTS
    switch_off(deployments)  # by a person, this time
    note_schedules(stack)
    restore_schedules(stack)
    assert not deployments[0]["schedules"][0]["active"]


def test_a_note_of_another_database_is_no_note(server: tuple[Stack, Any]) -> None:
    stack, deployments = server
    note_schedules(stack)
    switch_off(deployments)
    restore_schedules(stack.model_copy(update={"database": "postgresql://elsewhere"}))
    assert not deployments[0]["schedules"][0]["active"]


def test_a_server_that_refuses_is_an_error_that_says_what_to_do(
    server: tuple[Stack, Any],
) -> None:
    with pytest.raises(InfrastructureError, match=r"404.*run `tributary up` again"):
        ask(server[0], "POST", "/nowhere", {})
