"""Prefect's page as a test uses it: it sends what the page sends."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from infra.guard import login_link
from tests.parts.machine import Machine


class Page:
    """What Prefect's page sends."""

    def __init__(self, machine: Machine) -> None:
        self._home = machine.env["TRIBUTARY_HOME"]
        self._api = httpx.Client(
            base_url=machine.prefect_api, timeout=60, headers=machine.basic, trust_env=False
        )

    def submit(self, flow: str, parameters: dict[str, Any]) -> httpx.Response:
        deployment = self._ask("GET", f"/deployments/name/{flow}/{flow}").raise_for_status().json()
        path = f"/deployments/{deployment['id']}/create_flow_run"
        return self._ask("POST", path, {"parameters": parameters})

    def ended(self, flow_run: str, seconds: float) -> tuple[str, str]:
        """Type and message of the state in which a flow run ends."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self._ask("GET", f"/flow_runs/{flow_run}").raise_for_status().json()["state"]
            if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                return state["type"], state["message"] or ""
            time.sleep(0.5)
        raise AssertionError(f"flow run {flow_run} did not end in {seconds:.0f} s")

    def set_state(self, flow_run: str, *, force: bool = True, **state: Any) -> None:
        body = {"state": state, "force": force}
        self._ask("POST", f"/flow_runs/{flow_run}/set_state", body).raise_for_status()

    def suspend(self, flow_run: str) -> None:
        timeout = (datetime.now(UTC) + timedelta(seconds=300)).isoformat()
        details = {"pause_timeout": timeout, "pause_reschedule": True}
        self.set_state(flow_run, type="PAUSED", name="Suspended", state_details=details)

    def retry(self, flow_run: str) -> None:
        self.set_state(flow_run, type="SCHEDULED", name="AwaitingRetry", force=False)

    def state(self, flow_run: str) -> str:
        found = self._ask("GET", f"/flow_runs/{flow_run}").raise_for_status()
        return found.json()["state"]["type"]

    def resume(self, flow_run: str) -> None:
        self._ask("POST", f"/flow_runs/{flow_run}/resume", {}).raise_for_status()

    def parameters(self, flow_run: str) -> dict[str, Any]:
        return self._ask("GET", f"/flow_runs/{flow_run}").raise_for_status().json()["parameters"]

    def count(self) -> int:
        return self._ask("POST", "/flow_runs/count", {}).raise_for_status().json()

    @property
    def url(self) -> str:
        return str(self._api.base_url).rstrip("/").removesuffix("/api")

    def form(self, flow: str) -> str:
        """Where a person fills a deployment's form in."""
        found = self._ask("GET", f"/deployments/name/{flow}/{flow}").raise_for_status().json()
        return self.link(f"deployments/deployment/{found['id']}/run")

    def link(self, place: str) -> str:
        """Lets a browser in, and leads to the place."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRIBUTARY_HOME", self._home)
            return login_link(f"{self.url}/{place}")

    def newest(self) -> dict[str, Any]:
        newest = {"sort": "EXPECTED_START_TIME_DESC", "limit": 1}
        return self._ask("POST", "/flow_runs/filter", newest).raise_for_status().json()[0]

    def flow_run(self, flow_run: str) -> dict[str, Any]:
        return self._ask("GET", f"/flow_runs/{flow_run}").raise_for_status().json()

    def task_runs(self, flow_run: str) -> list[dict[str, Any]]:
        return self._of("task_runs", flow_run)

    def artifacts(self, flow_run: str) -> list[dict[str, Any]]:
        return self._of("artifacts", flow_run)

    def log(self, flow_run: str) -> list[str]:
        wanted = {"logs": {"flow_run_id": {"any_": [flow_run]}}}
        found = self._ask("POST", "/logs/filter", wanted).raise_for_status().json()
        return [line["message"] for line in found]

    def _of(self, what: str, flow_run: str) -> list[dict[str, Any]]:
        wanted = {"flow_runs": {"id": {"any_": [flow_run]}}}
        return self._ask("POST", f"/{what}/filter", wanted).raise_for_status().json()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Again while Prefect is busy, as a person clicks again."""
        deadline = time.monotonic() + 30
        while True:
            reply = self._api.request(method, path, json=body)
            if reply.status_code != 503 or time.monotonic() > deadline:
                return reply
            time.sleep(0.2)


def check_shown(
    machine: Machine, page: Page, flow_run: str, run: str, expected: dict[str, str]
) -> None:
    """Stages say what became of them; artifacts are few, their links work; Ray's page has names.

    `expected`: by stage that the run made, what its message looks like.
    """
    said = {task["name"]: task["state"]["message"] for task in page.task_runs(flow_run)}
    for stage, pattern in expected.items():
        assert re.search(pattern, said[stage]), said[stage]
    found = page.artifacts(flow_run)
    assert {artifact["key"] for artifact in found} <= {"run", *(f"stage-{name}" for name in said)}
    links = {
        link for artifact in found for link in re.findall(r"\]\((http[^)]+)\)", artifact["data"])
    }
    assert len(links) > len(said)
    assert flow_run not in json.dumps(sorted(links))
    for link in links:
        asked = httpx.get(link, timeout=60, follow_redirects=True, headers=machine.basic)
        assert asked.is_success, link
    assert max(map(len, page.log(flow_run))) < 400

    jobs = httpx.get(
        f"http://127.0.0.1:{machine.port('ray_dashboard')}/api/jobs/",
        timeout=60, headers=machine.bearer,
    ).raise_for_status()  # fmt: skip
    submitted = [job for job in jobs.json() if job["submission_id"]]  # others are bare drivers
    named = {job["submission_id"]: job["metadata"].get("job_name", "") for job in submitted}
    assert all(job.replace("--", "/", 1).startswith(name) for job, name in named.items())
    assert {f"{run}/{stage}" for stage in expected} <= set(named.values())


def made_by(report: dict[str, Any]) -> set[str]:
    return {stage["name"] for stage in report["stages"] if not stage["cached"]}
