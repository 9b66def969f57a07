"""What our Prefect server needs in addition to deployments: the work pool and the automation."""

from __future__ import annotations

from typing import Any

import httpx
import stamina

from infra.access import basic
from infra.errors import InfrastructureError, InputError
from infra.home import home
from infra.processes.network import certificates, loosed
from infra.stack.flow_jobs import JOBS, PROCESS_TEMPLATE, PROCESSES, read_template
from infra.stack.record import WORK_POOL, Stack

HEARTBEAT_SECONDS = 30
"""the shortest that Prefect allows"""
SILENT_SECONDS = 90
RESOURCE = "prefect.resource.id"
LEFT = "tributary.flow-run.left"
"""event of a flow whose process ended while its run is suspended or has a new process"""
_ENDED = ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")
CALL_SECONDS = 30.0
"""for one answer: a server that has just started on a busy machine is slow at first"""
BUSY_SECONDS = 120.0
Body = dict[str, Any] | list[dict[str, Any]]


def automation() -> dict[str, Any]:
    """Write the automation as Prefect's API takes it."""
    beat = "prefect.flow-run.heartbeat"
    return {
        "name": "tributary: flows that died",
        "description": f"A flow that is silent for {SILENT_SECONDS} s counts as crashed. "
        "`tributary up` creates this automation.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {RESOURCE: "prefect.flow-run.*"},
            "for_each": [RESOURCE],
            "after": [beat],
            "expect": [beat, LEFT, *(f"prefect.flow-run.{name}" for name in _ENDED)],
            "threshold": 1,
            "within": SILENT_SECONDS,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "message": f"Its process died or hangs: no heartbeat for {SILENT_SECONDS} s. "
                "Its jobs go on; continue with `tributary resume`, or with Retry here.",
            }
        ],
    }


def furnish(stack: Stack) -> None:
    """Put there what is missing. Raises InfrastructureError when the server refuses it."""
    _make_work_pool(stack)
    _watch_flows(stack)


def _make_work_pool(stack: Stack) -> None:
    """The pool that deployments name. Its job template is renewed each time: it says what a flow
    run may not choose, and another version of the chart has its own."""
    kind, template = PROCESSES, PROCESS_TEMPLATE
    if stack.job_template:
        kind, template = JOBS, read_template(stack.job_template)
    body: dict[str, Any] = {"name": WORK_POOL, "type": kind, "base_job_template": template}
    made = ask(stack, "POST", "/work_pools/", body, there_already=True)
    if made.status_code != 409:
        return
    known = ask(stack, "GET", f"/work_pools/{WORK_POOL}").json()["type"]
    if known != body["type"]:
        raise InputError(
            f"Prefect's work pool {WORK_POOL} is of type {known}, and flows are to run by one of"
            f" type {body['type']}: delete the pool on Prefect's page (its deployments are"
            " registered again), or set or unset TRIBUTARY_JOB_TEMPLATE as before"
        )
    ask(stack, "PATCH", f"/work_pools/{WORK_POOL}", {"base_job_template": template})


def _watch_flows(stack: Stack) -> None:
    """One that someone turned off on Prefect's page stays off."""
    wanted = automation()
    named = {"automations": {"name": {"any_": [wanted["name"]]}}}
    for attempt in stamina.retry_context(InfrastructureError, attempts=3):
        with attempt:  # one that was made without an answer is found
            if not ask(stack, "POST", "/automations/filter", named).json():
                ask(stack, "POST", "/automations/", wanted, busy=1.0)


def ask(
    stack: Stack,
    method: str,
    path: str,
    body: Body | None = None,
    there_already: bool = False,
    busy: float = BUSY_SECONDS,
) -> httpx.Response:
    """One request to the server's API, whose answer is no refusal; with `there_already` it may be
    that of a name which is taken. A server that is busy is asked again for `busy` seconds. Raises
    InfrastructureError."""
    try:
        # On SQLite the server turns a write away while another one is going on.
        for attempt in stamina.retry_context(_may_pass, attempts=None, timeout=busy):
            with attempt:
                reply = httpx.request(
                    method, stack.prefect_api + path, json=body, timeout=CALL_SECONDS,
                    trust_env=False, verify=certificates(), headers=basic(),
                )  # fmt: skip
                if not (there_already and reply.status_code == 409):
                    reply.raise_for_status()
                return loosed(reply)
    except httpx.HTTPError as error:
        raise InfrastructureError(
            f"Prefect's server did not do {method} {path}: {type(error).__name__}: {error}. Its log"
            f" is {home() / 'logs' / 'prefect-server.log'}; run `tributary up` again"
        ) from error
    raise AssertionError("stamina raises what the last try raised")


def _may_pass(error: Exception) -> bool:
    """No answer, or one that the server is too busy; a refusal stays one."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    return isinstance(error, httpx.TransportError)
