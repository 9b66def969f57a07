"""Schedules stay as they were made, also when `up` is interrupted while it registers them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.errors import InfrastructureError, InputError
from infra.home import home
from infra.stack.prefect_server import ask
from infra.stack.record import Stack
from infra.stack.schedules import note_schedules, restore_schedules
from infra.stack.stack_ports import PARTS
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit

WEEKLY: dict[str, Any] = {
    "id": "s1", "slug": "weekly", "active": True, "schedule": {"cron": "0 6 * * 1"},
    "parameters": {"expert": "agent"}, "max_scheduled_runs": None,
}  # fmt: skip
HOURLY: dict[str, Any] = {
    "id": "p1", "slug": None, "active": True, "schedule": {"interval": 3600.0},
    "parameters": {"expert": "general"}, "max_scheduled_runs": 3,
}  # fmt: skip
"""as someone adds one on Prefect's page"""
DEPLOYMENTS: list[dict[str, Any]] = [{"id": "d1", "name": "distill-rounds", "schedules": [WEEKLY]}]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stack, Any]]:
    """What answers where a stack's Prefect would, and its deployments."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    deployments = json.loads(json.dumps(DEPLOYMENTS))

    def answer(path: str, body: Any) -> tuple[int, Any]:
        schedules = deployments[0]["schedules"]
        match path:
            case "/api/deployments/filter":
                return 200, deployments
            case "/api/deployments/d1/schedules":
                schedules += [{"id": f"new{len(schedules)}", **each} for each in body]
                return 201, {}
            case "/api/deployments/d1/schedules/s1":
                schedules[0].update(body)
                return 200, {}
        return 404, {}

    with json_server(answer) as port:
        yield Stack(mark="m", ports=dict.fromkeys(PARTS, 1) | {"prefect": port}), deployments


def switch_off(deployments: Any) -> None:
    """As a registration does."""
    deployments[0]["schedules"][0].update(active=False, parameters={})


def register(deployments: Any) -> None:
    """As it does where one schedule has no slug: all go, and those of `prefect.yaml` are made."""
    weekly = {**WEEKLY, "active": False, "parameters": {}}
    deployments[0]["schedules"] = [weekly]


def without_ids(deployments: Any) -> list[dict[str, Any]]:
    return [{**each, "id": ""} for each in deployments[0]["schedules"]]


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


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("slug", [None, "mine"])
def test_a_schedule_that_someone_added_is_made_again(
    server: tuple[Stack, Any], slug: str | None, is_on: bool
) -> None:
    stack, deployments = server
    deployments[0]["schedules"].append({**HOURLY, "slug": slug, "active": is_on})
    before = without_ids(deployments)
    note_schedules(stack)
    register(deployments)
    restore_schedules(stack)
    assert without_ids(deployments) == before


def test_an_added_schedule_is_made_again_once_wherever_up_is_interrupted(
    server: tuple[Stack, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, deployments = server
    deployments[0]["schedules"].append(dict(HOURLY))
    before = without_ids(deployments)
    note_schedules(stack)  # and here `up` is killed
    note_schedules(stack)
    register(deployments)  # here too
    note_schedules(stack)
    register(deployments)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restore_schedules(stack)
    note_schedules(stack)
    register(deployments)
    restore_schedules(stack)
    assert without_ids(deployments) == before
    deployments[0]["schedules"].pop()  # by a person, this time
    note_schedules(stack)
    register(deployments)
    restore_schedules(stack)
    assert without_ids(deployments) == before[:1]


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


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


def test_a_note_that_a_power_cut_damaged_is_named(server: tuple[Stack, Any]) -> None:
    stack, _ = server
    note_schedules(stack)
    note = home() / "prefect" / "schedules.json"
    note.write_bytes(b"")
    for work in (note_schedules, restore_schedules):
        with pytest.raises(InputError, match=r"prefect/schedules\.json.*Delete it, run"):
            work(stack)
    assert note.exists(), "nothing is forgotten"
