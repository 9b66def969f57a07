"""The local stack as a whole: it comes up, repairs itself, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prefect.events import Event

from infra.access import basic
from infra.home import runtime_dir, stack_temporary_dir
from infra.processes.children import MARK_VARIABLE, find
from infra.stack import WORK_POOL, Stack, doctor, load_stack, status, up
from infra.stack.prefect_server import LEFT, RESOURCE, automation
from infra.stack.record import load_record
from tests.parts.machine import Machine, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("silent")]


class Silent:
    """Two flow runs of which nothing is heard: one has died, one has left."""

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self.dead, self.left = self._flow_run(), self._flow_run()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Again while Prefect is busy: SQLite lets one write at a time."""
        deadline = time.monotonic() + 60
        while (reply := self._api.request(method, path, json=body)).status_code == 503:
            assert time.monotonic() < deadline, reply.text
            time.sleep(0.2)
        return reply.raise_for_status().json() if reply.content else None

    def say(self, run: str, event: str) -> None:
        resource = {RESOURCE: f"prefect.flow-run.{run}"}
        self.ask("POST", "/events", [Event(event=event, resource=resource).model_dump(mode="json")])

    def state(self, run: str) -> str:
        return self.ask("GET", f"/flow_runs/{run}")["state"]["type"]

    def _flow_run(self) -> str:
        flow = self.ask("POST", "/flows/", {"name": "silent"})["id"]
        running = {"flow_id": flow, "state": {"type": "RUNNING"}}
        return self.ask("POST", "/flow_runs/", running)["id"]


@pytest.fixture(scope="module")
def silent(machine: Machine) -> Iterator[Silent]:
    """The shortest silence that Prefect allows is ten seconds: they pass while other tests run."""
    wanted = automation()
    named = {"automations": {"name": {"any_": [wanted["name"]]}}}
    with httpx.Client(
        base_url=machine.prefect_api, timeout=60, headers=machine.basic, trust_env=False
    ) as api:
        silent = Silent(api)
        (found,) = silent.ask("POST", "/automations/filter", named)
        hasty = wanted | {"trigger": wanted["trigger"] | {"within": 10}}
        silent.ask("PUT", f"/automations/{found['id']}", hasty)
        try:
            silent.say(silent.left, "prefect.flow-run.heartbeat")
            time.sleep(1)
            silent.say(silent.left, LEFT)
            # Later, so the one that left would crash first.
            silent.say(silent.dead, "prefect.flow-run.heartbeat")
            yield silent
        finally:
            silent.ask("PUT", f"/automations/{found['id']}", wanted)


def test_every_service_answers_on_loopback(stack: Stack) -> None:
    assert load_stack() == stack
    assert stack.host == "127.0.0.1"
    states = {state.name: state for state in status()}
    assert set(states) == {"prefect-server", "prefect-worker", "mlflow", "ray"}
    assert all(state.answers for state in states.values())
    assert all(state.memory > 10 << 20 for state in states.values())
    assert httpx.get(f"{stack.mlflow_uri}/health", trust_env=False).text == "OK"


def test_up_while_up_changes_nothing(stack: Stack) -> None:
    assert up() == stack


def test_what_prefect_yaml_names_is_deployed_to_our_pool(stack: Stack) -> None:
    found = httpx.post(
        f"{stack.prefect_api}/deployments/filter", json={}, headers=basic(), trust_env=False
    ).json()
    assert {"post-train", "expert", "distill-rounds", "evaluate"} <= {d["name"] for d in found}
    assert {d["work_pool_name"] for d in found} == {WORK_POOL}


def test_a_driver_joins_ray_and_no_worker_idles(stack: Stack) -> None:
    before = len(_workers(stack))
    program = (
        "import ray\n"
        "ray.init(logging_level='ERROR', log_to_driver=False)\n"
        "assert ray.cluster_resources()['CPU'] == 64"
    )
    env = os.environ | stack.env()
    subprocess.run([sys.executable, "-c", program], env=env, timeout=120, check=True)
    assert len(_workers(stack)) <= before + 1


def test_up_repairs_what_died(stack: Stack) -> None:
    record = stack.services["mlflow"]
    victim = find(record)
    assert victim is not None
    family = [victim, *victim.children(recursive=True)]
    victim.kill()
    psutil.wait_procs([victim], 10)
    repaired = up()
    assert repaired.mlflow_uri == stack.mlflow_uri
    assert repaired.services["mlflow"].pid != record.pid
    assert repaired.services["ray"] == stack.services["ray"]
    assert all(state.answers for state in status())
    assert not any(process.is_running() for process in family), "its orphans are gone as well"


def test_services_keep_temporary_files_where_down_removes_them(stack: Stack) -> None:
    for name, record in stack.services.items():
        service = find(record)
        assert service is not None
        assert service.environ()["TMPDIR"] == str(stack_temporary_dir()), name


def test_up_leaves_the_flows_of_a_dead_worker_alone(stack: Stack) -> None:
    record = stack.services["prefect-worker"]
    worker = find(record)
    assert worker is not None
    env = os.environ | {MARK_VARIABLE: f"{stack.mark}/prefect-worker"}
    with subprocess.Popen(["sleep", "300"], env=env) as flow:
        try:
            worker.kill()
            psutil.wait_procs([worker], 10)
            assert up().services["prefect-worker"].pid != record.pid
            assert flow.poll() is None
        finally:
            flow.kill()


def test_a_flow_without_heartbeats_is_crashed_and_one_that_has_left_is_not(silent: Silent) -> None:
    until(lambda: silent.state(silent.dead) == "CRASHED", 60)
    time.sleep(1)
    assert silent.state(silent.left) == "RUNNING"


def test_a_second_home_shares_no_port_and_no_folder(stack: Stack, tmp_path: Path) -> None:
    from infra.stack.record import new_stack

    ours = runtime_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(tmp_path / "second"))
        other = new_stack(load_record())
        assert runtime_dir() != ours
    assert not set(other.ports.values()) & set(stack.ports.values())


def test_the_doctor_finds_a_healthy_stack(stack: Stack) -> None:
    checks = {check.name: check for check in doctor()}
    assert checks["stack"].detail == "up"
    assert checks["home"].ok
    assert checks["python"].ok
    network = checks["network"]
    assert network.ok
    assert not network.warns
    assert network.detail.startswith("servers listen on 127.0.0.1 only, and ask for the key")


def _workers(stack: Stack) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(MARK_VARIABLE) == f"{stack.mark}/ray"
            if is_ours and process.name().startswith("ray::"):
                found.append(process)
        except psutil.Error:
            continue
    return found
