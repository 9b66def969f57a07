"""What the page's forms list, who hears of failures, how many runs go on, and what is scheduled."""

from __future__ import annotations

import http.server
import json
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from flows.command.recipes import remove_recipe, save_recipe
from flows.page.form import renew_lists
from flows.page.notify import is_notifying, notify_at, stop_notifying
from flows.running.prefect_api import PrefectApi
from infra.errors import InputError
from infra.stack import WORK_POOL, Stack
from infra.stack.schedules import note_schedules, restore_schedules
from tests.parts.json_server import serving
from tests.parts.machine import until

pytestmark = pytest.mark.e2e


@pytest.fixture
def api(stack: Stack) -> PrefectApi:
    return PrefectApi(stack.prefect_api)


@pytest.fixture
def webhook() -> Iterator[tuple[str, Queue[dict[str, Any]]]]:
    """Its address, and what it was sent."""
    sent: Queue[dict[str, Any]] = Queue()

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}/hook", sent


def _listed(api: PrefectApi, flow: str) -> list[str]:
    schema = api.call("GET", f"/deployments/name/{flow}/{flow}")["parameter_openapi_schema"]
    return schema["properties"]["recipe"]["anyOf"][0]["enum"]


def test_a_saved_recipe_is_in_every_form_until_it_is_removed(api: PrefectApi) -> None:
    save_recipe("cpu-smoke", "of-test")
    try:
        assert renew_lists(api) == 5
        assert renew_lists(api) == 0
        assert "of-test" in _listed(api, "post-train")
        assert "of-test" in _listed(api, "evaluate")
    finally:
        remove_recipe("of-test")
        renew_lists(api)
    assert "of-test" not in _listed(api, "post-train")
    deployment = api.call("GET", "/deployments/name/distill-rounds/distill-rounds")
    assert [s["slug"] for s in deployment["schedules"]] == ["weekly"], "the rest is as it was"


def test_a_webhook_hears_of_a_run_that_fails(
    api: PrefectApi, webhook: tuple[str, Queue[dict[str, Any]]]
) -> None:
    url, sent = webhook
    notify_at(api, url)
    try:
        assert is_notifying(api)
        assert "Tributary" in sent.get(timeout=10)["text"]
        flow = api.call("POST", "/flows/", {"name": "of-test"})["id"]
        running: dict[str, Any] = {"flow_id": flow, "name": "bad", "state": {"type": "RUNNING"}}
        run = api.call("POST", "/flow_runs/", running)["id"]
        ended = {"type": "FAILED", "name": "Failed", "message": 'stage "a" failed'}
        api.call("POST", f"/flow_runs/{run}/set_state", {"state": ended, "force": True})
        said = sent.get(timeout=60)
        assert said["text"] == said["content"]
        assert 'bad: Failed. stage "a" failed' in said["text"]
        assert run in said["text"], "with a link to its page"
    finally:
        assert stop_notifying(api)
    assert not is_notifying(api)
    assert not stop_notifying(api)


def test_a_webhook_that_cannot_be_reached_is_refused(api: PrefectApi) -> None:
    for url in ("ftp://here", "http://127.0.0.1:9/hook"):
        with pytest.raises(InputError, match="notify: "):
            notify_at(api, url)
    assert not is_notifying(api)


def test_a_schedule_that_is_switched_on_has_parameters_and_survives_registration(
    api: PrefectApi, stack: Stack
) -> None:
    deployment = api.call("GET", "/deployments/name/distill-rounds/distill-rounds")
    (weekly,) = deployment["schedules"]
    path = f"/deployments/{deployment['id']}/schedules/{weekly['id']}"
    changed = {"active": True, "parameters": {**weekly["parameters"], "expert": "general"}}
    api.call("PATCH", path, changed)
    try:
        wanted = {
            "deployments": {"id": {"any_": [deployment["id"]]}},
            "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
        }
        until(lambda: bool(api.call("POST", "/flow_runs/filter", wanted)), 60)
        planned = api.call("POST", "/flow_runs/filter", wanted)[0]
        given = {"recipe": "cpu-demo", "expert": "general", "rounds": 1}
        assert given.items() <= planned["parameters"].items()

        note_schedules(stack)
        api.call("PATCH", path, {"active": False, "parameters": weekly["parameters"]})
        note_schedules(stack)  # of an `up` after one that was interrupted here
        restore_schedules(stack)
        (kept,) = api.call("GET", f"/deployments/{deployment['id']}/schedules")
        assert (kept["active"], kept["parameters"]["expert"]) == (True, "general")
    finally:
        api.call("PATCH", path, {"active": False, "parameters": weekly["parameters"]})


def test_the_pool_takes_a_number_of_runs_at_once(api: PrefectApi) -> None:
    path = f"/work_pools/{WORK_POOL}"
    api.call("PATCH", path, {"concurrency_limit": 2})
    assert api.call("GET", path)["concurrency_limit"] == 2
    api.call("PATCH", path, {"concurrency_limit": None})
    assert api.call("GET", path)["concurrency_limit"] is None
