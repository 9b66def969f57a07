"""What our Prefect server needs in addition to deployments: the work pool, the automation, and
the schedules that someone switched on."""

from __future__ import annotations

from typing import Any

import httpx
import stamina

from infra.access import basic
from infra.errors import InfrastructureError
from infra.stack.record import WORK_POOL, Stack
from infra.stack.watch import automation

BUSY_SECONDS = 30.0
_OF_SCHEDULE = ("active", "schedule", "parameters")


def furnish(stack: Stack) -> None:
    """Put there what is missing. Raises InfrastructureError when the server refuses it."""
    try:
        _make_work_pool(stack)
        _watch_flows(stack)
    except httpx.HTTPError as error:
        raise InfrastructureError(f"Prefect refused a part of the stack: {error}") from error


def _make_work_pool(stack: Stack) -> None:
    """The pool that deployments name; its worker fills in the job template."""
    body = {"name": WORK_POOL, "type": "process"}
    _ask(stack, "POST", "/work_pools/", body, there_already=True)


def _watch_flows(stack: Stack) -> None:
    """One that someone turned off on Prefect's page stays off."""
    wanted = automation()
    named = {"automations": {"name": {"any_": [wanted["name"]]}}}
    if not _ask(stack, "POST", "/automations/filter", named).json():
        _ask(stack, "POST", "/automations/", wanted)


def active_schedules(stack: Stack) -> dict[tuple[str, str], dict[str, Any]]:
    """What makes up each schedule that is on, by its deployment's name and its own."""
    found = _ask(stack, "POST", "/deployments/filter", {}).json()
    return {
        (deployment["name"], schedule["slug"]): {key: schedule[key] for key in _OF_SCHEDULE}
        for deployment in found
        for schedule in deployment["schedules"]
        if schedule["active"] and schedule["slug"]
    }


def keep_schedules(stack: Stack, wanted: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Let those stay on, as they were made: to register a deployment switches its schedules off.

    Raises InfrastructureError when the server refuses it.
    """
    try:
        for deployment in _ask(stack, "POST", "/deployments/filter", {}).json():
            for schedule in deployment["schedules"]:
                if before := wanted.get((deployment["name"], schedule["slug"])):
                    path = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
                    _ask(stack, "PATCH", path, before)
    except httpx.HTTPError as error:
        raise InfrastructureError(f"Prefect refused a schedule: {error}") from error


def _ask(
    stack: Stack, method: str, path: str, body: dict[str, Any], there_already: bool = False
) -> httpx.Response:
    # On SQLite the server turns a write away while another one is going on.
    for attempt in stamina.retry_context(_may_pass, attempts=None, timeout=BUSY_SECONDS):
        with attempt:
            reply = httpx.request(
                method, stack.prefect_api + path, json=body, timeout=BUSY_SECONDS,
                trust_env=False, headers=basic(),
            )  # fmt: skip
            if not (there_already and reply.status_code == 409):
                reply.raise_for_status()
            return reply
    raise AssertionError("stamina raises what the last try raised")


def _may_pass(error: Exception) -> bool:
    """No answer, or one that the server is too busy; a refusal stays one."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    return isinstance(error, httpx.TransportError)
