"""The stack in its default mode, as the machine's other users, its neighbours on the network and
pages in its user's browser meet it: whoever has no key gets health pages and nothing else."""

from __future__ import annotations

import http.client
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest

from flows.page.prefect_app import RAY_PAGE
from infra.access import LOOPBACK, basic, bearer, key, key_path
from infra.guard import login_link
from infra.home import home, runtime_dir
from infra.processes.children import family
from infra.stack import WORK_POOL, Stack
from infra.stack.stack_ports import open_ports, unguarded
from tests.e2e.stranger import asked_by_a_stranger, listening, stranger
from tests.parts.machine import Machine

pytestmark = pytest.mark.integration

EVIL = "http://evil.example"
HEALTH = {"api/health", "health", "api/ready", "api/gcs_healthz", "api/local_raylet_healthz"}
"""what may be read without the key, and Ray's empty page"""
PATHS = (
    *HEALTH, "", "metrics", "api/version", "api/jobs/", "api/job_agent/jobs/", "nodes?view=summary",
    "api/admin/settings", "api/2.0/mlflow/experiments/search?max_results=1", "model_info",
    "v1/models", "logs", "api/v0/logs", "docs", "openapi.json", "login/made-up/",
)  # fmt: skip
FRAMES = {("ray_dashboard", "")}


@pytest.fixture
def web() -> Iterator[httpx.Client]:
    """Somebody without a key."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        yield client


def test_no_port_is_reached_by_the_machine_s_own_address(stack: Stack) -> None:
    assert open_ports(stack) == {}
    others = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family is socket.AF_INET and not address.address.startswith("127.")
    ]
    ports = set(listening(stack))
    assert set(stack.ports.values()) <= ports
    reached = [(host, port) for host in others for port in ports if _takes(host, port)]
    assert reached == []


def test_every_port_gives_health_and_nothing_else_without_the_key(stack: Stack) -> None:
    name_of = {port: name for name, port in stack.ports.items()}
    told: list[str] = []
    for port in set(listening(stack)):
        for path in PATHS:
            name = name_of.get(port, "another")
            for method in ("GET", "POST"):
                status = _asked(method, LOOPBACK, port, path)
                is_free = method == "GET" and (path in HEALTH or (name, path) in FRAMES)
                if 200 <= status < 400 and not is_free:
                    told.append(f"{method} {name} {port}/{path}: {status}")
    assert told == []
    assert unguarded(stack) == []


_TO_THE_GCS = """
import os, sys
from ray._raylet import GcsClient
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None))
"""


def test_another_user_gets_nothing_of_any_port_file_or_process(
    machine: Machine, stack: Stack
) -> None:
    """Who may run programs on this machine, and asks everything of everything."""
    if os.geteuid() != 0:
        pytest.skip("needs root, which can be another user")
    before, there = machine.counts(), _all_of(stack)
    assert len(there["pids"]) > 10
    assert len(there["files"]) > 30
    assert there["sockets"]
    told = asked_by_a_stranger([sys.executable, "-c"], {**there, "uid": 65534})
    assert told["got"] == []
    assert told["sent"] >= 30 * len(there["ports"])
    assert machine.counts() == before
    done = subprocess.run(
        [sys.executable, "-c", _TO_THE_GCS, stack.ray_address], capture_output=True, text=True,
        timeout=120, check=False, env=os.environ | {"RAY_AUTH_MODE": "disabled",
        "RAY_gcs_rpc_server_connect_timeout_s": "1"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "InvalidAuthToken" in done.stderr


def test_a_neighbour_on_the_network_reaches_nothing(stack: Stack) -> None:
    there: dict[str, Any] = {"ports": sorted(set(listening(stack))), "uid": 0}
    with stranger() as other:
        told = asked_by_a_stranger(other.program("-c"), {**there, "addresses": other.addresses()})
    assert told == {"sent": 0, "got": []}, "no port takes a connection"


def _all_of(stack: Stack) -> dict[str, Any]:
    """Ports, processes and files of the stack, for who tries to use them."""
    processes = family(stack.services.values(), stack.mark)
    places = [home(), runtime_dir()]
    found = [path for place in places for path in place.rglob("*")]
    shared: set[str] = set()
    for process in processes:
        with suppress(psutil.Error):
            maps = [each.path.partition(" ")[0] for each in process.memory_maps()]
            shared |= {path for path in maps if path.startswith("/dev/shm/")}
    return {
        "addresses": ["127.0.0.1"],
        "ports": sorted(set(listening(stack))),
        "pids": [process.pid for process in processes],
        "folders": [str(path) for path in (*places, *found) if path.is_dir()],
        "files": [*(str(path) for path in found if path.is_file()), *sorted(shared)],
        "sockets": [str(path) for path in found if path.is_socket()],
    }


def test_a_page_of_another_site_changes_and_reads_nothing(stack: Stack, web: httpx.Client) -> None:
    pages = (f"{stack.prefect_api}/deployments/filter", f"{stack.mlflow_uri}/api/2.0/mlflow/x")
    for url in pages:
        asked = web.options(url, headers={"Origin": EVIL, "Access-Control-Request-Method": "POST"})
        assert asked.status_code in (401, 403)
        assert "access-control-allow-origin" not in asked.headers
        for sent in ({}, basic()):
            refused = web.post(url, json={}, headers={"Origin": EVIL} | sent)
            assert refused.status_code == 403, url
            assert "access-control-allow-origin" not in refused.headers
            rebound = web.get(url, headers={"Host": "evil.example"} | sent)
            assert rebound.status_code == 403, url
    rebound = web.get(f"{stack.ray_dashboard}/api/jobs/", headers={"Host": "evil.example"})
    assert rebound.status_code == 401


def test_mlflows_assistant_runs_nothing_on_this_machine(stack: Stack, web: httpx.Client) -> None:
    assistant = f"{stack.mlflow_uri}/ajax-api/3.0/mlflow/assistant"
    for path in ("message", "sessions/1/permission", "sessions/1/tool-result"):
        assert web.post(f"{assistant}/{path}", json={"message": "hi"}).status_code == 401
        asked = web.post(f"{assistant}/{path}", json={"message": "hi"}, headers=basic())
        assert (asked.status_code, "not offered" in asked.text) == (404, True)
    assert web.get(f"{assistant}/providers/claude_code/health", headers=basic()).status_code == 404
    assert web.get(f"{assistant}/config", headers=basic()).status_code == 200, "pages read it"


def test_a_browser_that_opened_a_link_reads_every_page(stack: Stack) -> None:
    link = login_link(f"{stack.prefect_ui}/runs")
    with httpx.Client(trust_env=False, timeout=60) as browser:
        opened = browser.get(link)
        assert (opened.status_code, opened.headers["location"]) == (303, "/runs")
        for url in (
            f"{stack.prefect_ui}/runs",
            f"{stack.prefect_api}/admin/version",
            f"{stack.mlflow_uri}/",
            f"{stack.prefect_ui}{RAY_PAGE}",
            f"{stack.prefect_ui}{RAY_PAGE}api/jobs/",
        ):
            shown = browser.get(url, headers={"Accept": "text/html,*/*"})
            assert shown.status_code == 200, url
        assert key() not in str(list(browser.cookies.jar))
        assert browser.get(f"{stack.ray_dashboard}/api/jobs/").status_code == 401
        assert browser.get(f"{stack.prefect_ui}/ui-settings").json()["auth"] is None
        changed = browser.post(f"{stack.prefect_api}/flow_runs/count", json={})
        assert changed.status_code == 200
        foreign = {"Origin": "http://127.0.0.1:9"}
        url = f"{stack.prefect_api}/flow_runs/count"
        assert browser.post(url, json={}, headers=foreign).status_code == 403
    assert httpx.get(link, trust_env=False).status_code == 401


def test_ray_s_page_shows_and_changes_nothing(stack: Stack, web: httpx.Client) -> None:
    url = f"{stack.prefect_ui}{RAY_PAGE}"
    assert web.get(url).status_code == 401
    with httpx.Client(base_url=url, headers=basic(), timeout=60, trust_env=False) as ray:
        job = {"entrypoint": "true"}
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ray.request(method, "api/jobs/", json=job).status_code == 405
        page = ray.get("")
        assert "Ray Dashboard" in page.text
        assert "sandbox" not in page.headers["content-security-policy"]
        link = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        for site in ("same-site", "cross-site"):
            led = link | {"Sec-Fetch-Site": site}
            assert ray.get("", headers=led).status_code == 200
            for asked in (
                "memory_profile?pid=1", "worker/cpu_profile?pid=1", "nodes?view=summary",
                "static/..%2fapi/jobs/", "static/%2e%2e/api/jobs/",
            ):  # fmt: skip
                assert ray.get(asked, headers=led).status_code == 403, asked
        data = ray.get("nodes?view=summary")
        assert data.json()["data"]["summary"]
        assert "sandbox" in data.headers["content-security-policy"]


@pytest.mark.parametrize(
    "variables",
    [{"command": "/bin/sh -c id"}, {"env": {"LD_PRELOAD": "x"}}, {"working_dir": "/"}, {"x": 1}],
)
def test_a_flow_run_names_no_command_of_its_own(stack: Stack, variables: dict[str, object]) -> None:
    """Whoever knows the key may start flows, and only what the deployment says runs."""
    (name,) = variables
    with httpx.Client(
        base_url=stack.prefect_api, headers=basic(), timeout=60, trust_env=False
    ) as api:
        deployment = api.get("/deployments/name/post-train/post-train").json()["id"]
        body = {"job_variables": variables, "enforce_parameter_schema": False}
        refused = api.post(f"/deployments/{deployment}/create_flow_run", json=body)
        assert refused.status_code == 422
        assert name in refused.text
        template = api.get(f"/work_pools/{WORK_POOL}").json()["base_job_template"]
    assert "{{" not in str(template), "nothing is filled in from outside"


def test_the_key_is_its_owner_s_alone(stack: Stack) -> None:
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert (home() / "logins").stat().st_mode & 0o777 == 0o700
    for process in family(stack.services.values(), stack.mark):
        with suppress(psutil.Error):
            assert key() not in " ".join(process.cmdline())
            if process.name().startswith(("ray", "gcs", "mlflow")):
                assert key() not in str(process.environ()), process.name()
    jobs = httpx.get(f"{stack.ray_dashboard}/api/jobs/", headers=bearer(), trust_env=False).text
    assert not re.search(re.escape(key()), jobs)


def test_no_process_leaves_its_memory_in_a_file(stack: Stack) -> None:
    """It holds the key, and secrets of the store."""
    limits = [
        resource.prlimit(process.pid, resource.RLIMIT_CORE)[0]
        for process in family(stack.services.values(), stack.mark)
        if process.is_running()
    ]
    assert len(limits) > 10
    assert max(limits) <= 1


def _takes(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _asked(method: str, host: str, port: int, path: str) -> int:
    """The status of an HTTP answer; 0 where none is given."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, f"/{path}", headers={"Content-Type": "application/json"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
