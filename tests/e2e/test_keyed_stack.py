"""A stack that listens on every address, and whose store's credentials only a Prefect block knows.

Strangers are refused, all of ours goes on working, and neither the key nor the credentials are in
an argument, a record or a log.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from engines.sglang.http import call
from infra.access import basic, bearer, key, key_path
from infra.errors import EngineError
from infra.home import SOURCE_ROOT, runtime_dir
from infra.processes.children import family
from infra.stack import Stack, load_stack
from infra.stack.stack_ports import exposure, open_ports
from tests.e2e.keyed_fleet import answer_no_other_site, refuse_strangers
from tests.e2e.stranger import asked_by_a_stranger, listening, stranger
from tests.parts.machine import BUCKET, Machine, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

BLOCK = "lab-s3"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "planted-id-93bb01c4",
    "AWS_SECRET_ACCESS_KEY": "planted-key-5e20d9fa",
    "AWS_SESSION_TOKEN": "planted-token-c61f7733",
}
FOURTH = SOURCE_ROOT / "examples" / "fourth_expert" / "recipe.yaml"
_STORE = ["--set", f"storage.root=s3://{BUCKET}/keyed", "--set", f"storage.credentials={BLOCK}"]


@pytest.fixture(scope="module")
def keyed(
    tmp_path_factory: pytest.TempPathFactory, s3: str, command_lines: set[str]
) -> Iterator[Machine]:
    del command_lines  # it watches from the first process on
    machine = Machine(tmp_path_factory.mktemp("keyed"), s3)
    for name in CREDENTIALS:
        machine.env.pop(name, None)
    # Nor may a library find credentials elsewhere.
    machine.env |= dict.fromkeys(("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"), os.devnull)
    machine.env |= {"AWS_EC2_METADATA_DISABLED": "true", "TRIBUTARY_HOST": "0.0.0.0"}
    with machine.running():
        machine.env.pop("TRIBUTARY_HOST")  # who uses the stack need not know
        yield machine


@pytest.fixture
def open_stack(keyed: Machine, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("TRIBUTARY_HOME", keyed.env["TRIBUTARY_HOME"])
    running = load_stack()
    assert running is not None
    for name, value in running.env().items():
        monkeypatch.setenv(name, value)
    return running


def test_every_server_refuses_strangers_and_answers_who_knows_the_key(open_stack: Stack) -> None:
    wrong = {"Authorization": "Bearer wrong"}, {"Authorization": "Basic d3Jvbmc6d3Jvbmc="}
    for url, right in (
        (f"{open_stack.prefect_api}/admin/version", basic()),
        (f"{open_stack.mlflow_uri}/", basic()),
        (f"{open_stack.mlflow_uri}/api/2.0/mlflow/experiments/search?max_results=1", basic()),
        (f"{open_stack.mlflow_uri}/ajax-api/2.0/mlflow/experiments/search?max_results=1", basic()),
        (f"{open_stack.ray_dashboard}/api/version", bearer()),
        (f"{open_stack.ray_dashboard}/api/jobs/", bearer()),
    ):
        refused = [httpx.get(url, headers=given).status_code for given in ({}, *wrong)]
        assert set(refused) <= {401, 403}, url
        assert httpx.get(url, headers=right).status_code == 200, url
    refused = httpx.post(f"{open_stack.ray_dashboard}/api/jobs/", json={"entrypoint": "true"})
    assert refused.status_code == 401
    on_every_address = open_ports(open_stack)
    assert {open_stack.ports[name] for name in ("prefect", "mlflow", "ray_dashboard")} <= set(
        on_every_address
    )


def test_a_driver_without_the_token_does_not_join_ray(open_stack: Stack, keyed: Machine) -> None:
    program = (
        "from ray._raylet import GcsClient\n"
        f"print(GcsClient(address='{open_stack.ray_address}').internal_kv_keys(b'', None))"
    )

    def join(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program], env=keyed.env | open_stack.env() | env,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert join().returncode == 0
    stranger = join(RAY_AUTH_MODE="disabled", RAY_gcs_rpc_server_connect_timeout_s="1")
    assert stranger.returncode != 0
    assert "InvalidAuthToken" in stranger.stderr


def test_a_block_that_is_missing_or_holds_no_variables_is_explained(keyed: Machine) -> None:
    asked = ["run", "cpu-smoke", "--set", "storage.credentials=nobody-made-this"]
    told = _refused(keyed, *asked)
    assert "block `nobody-made-this`" in told
    assert "tributary secret nobody-made-this AWS_ACCESS_KEY_ID" in told
    assert "AWS_NOT_SET is not set" in _refused(keyed, "secret", "x", "AWS_NOT_SET")
    assert "may not set `PYTHONPATH`" in _refused(
        keyed, "secret", "x", "PYTHONPATH", env={"PYTHONPATH": "planted"}
    )


def test_without_its_block_nobody_reaches_the_store(keyed: Machine) -> None:
    told = _refused(keyed, "artifacts", "--root", f"s3://{BUCKET}/keyed", code=1)
    assert "there are no complete credentials" in told


def test_a_users_own_expert_is_trained_through_it_and_no_secret_is_written_down(
    keyed: Machine, open_stack: Stack, command_lines: set[str]
) -> None:
    """Every kind of server has work."""
    _call(keyed, "secret", BLOCK, *CREDENTIALS, env=CREDENTIALS)
    # SGLang then logs its arguments, and would show its metrics to everybody.
    fleet = "{sglang: {log_level: info, enable_metrics: true}}"
    steps = "steps: 1, problems_per_step: 4, group_size: 8, optimizer: {lr: 2e-4}"
    path = f"[{{rl: {{{steps}, fleet: {fleet}}}}}]"
    alone = ["--expert", "sorting", "--until", "sorting-rl", "--name", "keyed", *_STORE]
    keyed.call("run", str(FOURTH), *alone, "--set", "resources={servers: 1, trainer_ranks: 1}",
               "--set", f"experts.sorting.path={path}", timeout=600)  # fmt: skip
    report = keyed.report("keyed")
    assert report["state"] == "completed"
    stages = [stage["name"] for stage in report["stages"]]
    assert stages == ["base", "sorting-rl"]
    runs = httpx.post(
        f"{open_stack.mlflow_uri}/api/2.0/mlflow/runs/search",
        json={"experiment_ids": ["1"], "max_results": 100}, headers=basic(),
    )  # fmt: skip
    assert len(runs.json()["runs"]) > len(report["stages"]), "MLflow has a run a stage"
    keyed.call("status")
    keyed.call("artifacts")
    jobs = httpx.get(f"{open_stack.ray_dashboard}/api/jobs/", headers=bearer()).text
    assert '"submission_id"' in jobs
    flows = httpx.post(
        f"{open_stack.prefect_api}/flow_runs/filter", json={}, headers=basic()
    ).text  # fmt: skip
    assert BLOCK in flows, "a flow's parameters name the block"
    assert any("tasks.durable.job" in line for line in command_lines), "a stage ran while we looked"
    # The router soon has a title of its own; we look once a second.
    router = ("sglang::router", "engines.sglang.servers.router_main")
    assert any(name in line for line in command_lines for name in router)
    running = family(open_stack.services.values(), open_stack.mark)
    assert len(running) > 4
    shown = [*keyed.said, jobs, flows, runs.text, *command_lines]
    shown += [" ".join(process.cmdline()) for process in running]
    places = (Path(keyed.env["TRIBUTARY_HOME"]), runtime_dir())
    # Prefect's runner has a flow's environment in a file of a folder of its own until it ends.
    until(lambda: not any(runtime_dir().rglob("workspace.json")), 60)
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert {"mlflow.db", "prefect.db", "stack.json"} <= {file.name for file in files}
    stored = [entry for entry in _stored(keyed) if entry[0].startswith("keyed/")]
    assert any(name.endswith("manifest.json") for name, _ in stored)
    held = [(file, _bytes(file)) for file in files]
    assert any(b"server_args=" in body for file, body in held if file.match("server-*.log"))
    for secret in (key(), *CREDENTIALS.values()):
        assert not [text for text in shown if secret in text]
        assert not [name for name, body in stored if secret.encode() in body]
        holders = [file for file, body in held if secret.encode() in body]
        assert holders == ([key_path()] if secret == key() else [])


def test_a_stage_s_servers_have_worked_and_strangers_are_refused(open_stack: Stack) -> None:
    """After the test before, whose servers and router still run."""
    ours = open_ports(open_stack)
    (router,) = (f"http://127.0.0.1:{port}" for port, name in ours.items() if "router" in name)
    known = httpx.get(f"{router}/workers", headers=bearer(), trust_env=False).raise_for_status()
    servers = [worker["url"] for worker in known.json()["workers"]]
    assert servers
    assert {int(url.rpartition(":")[2]) for url in servers} <= set(ours)
    refuse_strangers(router, servers)
    answer_no_other_site((router, *servers))


def test_others_reach_the_ports_that_the_page_lists_and_no_more(
    keyed: Machine, open_stack: Stack
) -> None:
    """After the test before, whose servers and router still run."""
    before = keyed.counts()
    listed = re.findall(r"^\| (`.+`) \|", (SOURCE_ROOT / "docs/security.md").read_text(), re.M)
    names = {name for row in listed for name in re.findall("`(.+?)`", row)}
    ours = open_ports(open_stack)
    name_of = {port: name for name, port in open_stack.ports.items()}
    kinds = {port: name_of.get(port) or _kind(program) for port, program in ours.items()}
    with stranger() as other:
        reached = other.reaches(listening(open_stack))
        told = other.get([f"{port}/{path}" for port in reached for path in _PATHS])
        there = {"addresses": [other.host], "ports": sorted(reached), "uid": 0}
        got = asked_by_a_stranger(other.program("-c"), there)
    assert {kinds.get(port, f"{port}, on loopback") for port in reached} == names
    assert got["got"] == []
    assert got["sent"] >= 30 * len(reached)
    assert keyed.counts() == before
    assert set(open_stack.ports.values()) <= reached
    assert "sglang" in kinds.values()
    home = open_stack.services["ray"].log.parents[1]
    for asked, (status, body) in told.items():
        assert "# TYPE" not in body, f"{asked} gives metrics to everyone"
        assert str(home) not in body, f"{asked} gives a path to everyone"
        assert "model_path" not in body, f"{asked} gives a path to everyone"
        assert status != 200 or asked.endswith(_FREE), asked


_PATHS = (
    "", "metrics", "engine_metrics", "v1/models", "model_info", "get_model_info", "server_info",
    "get_server_info", "api/version", "workers",
)  # fmt: skip
_FREE = ("/", "/v1/models", "/get_server_info", "/engine_metrics")
"""the frames of pages; the router's list, the number of its servers, and metrics of none"""


def _kind(program: str) -> str:
    return "ray worker" if program.startswith(("ray::", "python")) else program.partition(":")[0]


def test_the_doctor_warns_and_says_how_it_is_protected(open_stack: Stack) -> None:
    check = exposure(open_stack)
    assert check.ok
    assert check.warns
    assert "listen on 0.0.0.0" in check.detail
    assert str(key_path()) in check.detail
    assert str(open_stack.ports["mlflow"]) in check.detail
    assert key() not in check.detail


def test_a_key_that_is_gone_is_said(open_stack: Stack, keyed: Machine) -> None:
    aside = key_path().rename(key_path().with_name("aside"))
    try:
        assert "is missing in" in _refused(keyed, "up")
        with pytest.raises(EngineError, match="401"):
            call(open_stack.mlflow_uri, "/version", timeout=10)
    finally:
        aside.rename(key_path())


def _run(
    machine: Machine, *arguments: str, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [machine.program, *arguments], env=machine.env | env, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    machine.said += [done.stdout, done.stderr]
    return done


def _call(machine: Machine, *arguments: str, env: Mapping[str, str]) -> None:
    done = _run(machine, *arguments, env=env)
    assert done.returncode == 0, done.stderr


def _refused(
    machine: Machine, *arguments: str, code: int = 2, env: Mapping[str, str] | None = None
) -> str:
    done = _run(machine, *arguments, env=env or {})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


def _stored(machine: Machine) -> Iterator[tuple[str, bytes]]:
    pages = machine.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    for entry in (entry for page in pages for entry in page.get("Contents", [])):
        yield entry["Key"], machine.s3.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # a log that was rotated away
        return b""
