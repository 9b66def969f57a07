"""Flows as jobs of Kubernetes: what the stack leaves out and gives Prefect, what their pods see."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.sglang.servers.host import prepare_environment
from flows.running.secrets import block_secrets
from infra.access import ADDRESS_VARIABLE, HOST_VARIABLE, reachable
from infra.errors import InputError
from infra.processes.children import ProcessRecord
from infra.stack import Stack, load_stack
from infra.stack.cluster import Cluster
from infra.stack.flow_jobs import ELSEWHERE_VARIABLE, TEMPLATE_VARIABLE
from infra.stack.prefect_server import furnish
from infra.stack.record import new_stack, require_same_host, save_record
from infra.stack.services import services
from infra.stack.stack_ports import PARTS
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit

CLOSED: dict[str, Any] = {"additionalProperties": False, "properties": {"name": {}}}
TEMPLATE: dict[str, Any] = {
    "job_configuration": {"job_manifest": {"kind": "Job"}},
    "variables": CLOSED,
}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    for variable in (HOST_VARIABLE, ADDRESS_VARIABLE, TEMPLATE_VARIABLE, ELSEWHERE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(TEMPLATE))
    monkeypatch.setenv(TEMPLATE_VARIABLE, str(file))
    return file


def own_address() -> str:
    """Of this machine, towards others; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        try:
            towards.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has loopback only")
        return str(towards.getsockname()[0])


def test_a_stack_that_listens_everywhere_is_called_by_the_address_that_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = own_address()
    monkeypatch.setenv(HOST_VARIABLE, "0.0.0.0")
    monkeypatch.setenv(ADDRESS_VARIABLE, address)
    stack = new_stack(None)
    assert stack.prefect_api.startswith(f"http://{address}:")
    ray, prefect, *_ = services(stack)
    assert f"--node-ip-address={address}" in ray.command
    assert "0.0.0.0" in prefect.command
    assert stack.env()[ADDRESS_VARIABLE] == reachable("0.0.0.0") == address
    assert reachable("10.1.2.3") == "10.1.2.3"
    require_same_host(stack)
    monkeypatch.setenv(ADDRESS_VARIABLE, "10.9.9.9")
    with pytest.raises(InputError, match=rf"{ADDRESS_VARIABLE} is now 10.9.9.9"):
        require_same_host(stack)


def test_weights_are_broadcast_over_the_card_that_has_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {HOST_VARIABLE: "0.0.0.0", ADDRESS_VARIABLE: own_address()}
    monkeypatch.setattr(os, "environ", given)
    prepare_environment()
    cards = psutil.net_if_addrs()[given["GLOO_SOCKET_IFNAME"]]
    assert given[ADDRESS_VARIABLE] in [card.address for card in cards]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "192.0.2.250", "head"])
def test_an_address_that_no_other_host_reaches_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "0.0.0.0")
    monkeypatch.setenv(ADDRESS_VARIABLE, address)
    with pytest.raises(InputError, match=f"{ADDRESS_VARIABLE} is `?{address}"):
        new_stack(None)


def test_with_a_template_the_stack_starts_no_worker(template: Path) -> None:
    with_template = new_stack(None)
    assert with_template.job_template == str(template)
    names = [service.name for service in services(with_template)]
    assert "prefect-worker" not in names
    without = with_template.model_copy(update={"job_template": ""})
    assert [service.name for service in services(without)] == [*names, "prefect-worker"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("{}", "lacks `job_configuration"),
        (
            json.dumps({**TEMPLATE, "variables": {"type": "object"}}),
            "lets flow runs name variables",
        ),
        (
            json.dumps({**TEMPLATE, "variables": {**CLOSED, "properties": {"command": {}}}}),
            "has the variables command, so that who starts a flow could run any command",
        ),
    ],
)
def test_a_file_that_is_no_template_is_refused(text: str | None, said: str, template: Path) -> None:
    template.unlink()
    if text is not None:
        template.write_text(text)
    with pytest.raises(InputError, match=said):
        new_stack(None)


@pytest.fixture
def server() -> Iterator[tuple[int, dict[str, Any]]]:
    """Prefect's API as far as pools and automations go, and the pool that it has."""
    pool: dict[str, Any] = {}

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/api/work_pools/":
            taken = bool(pool)
            pool.update({} if taken else body)
            return 409 if taken else 201, pool
        if path.startswith("/api/automations"):
            return 200, [{"name": "there"}]
        pool.update(body)
        return 200, pool

    with json_server(answer) as port:
        yield port, pool


def test_the_work_pool_gets_the_template_and_keeps_its_type(
    server: tuple[int, dict[str, Any]], template: Path
) -> None:
    port, pool = server
    ports = dict.fromkeys(PARTS, 1) | {"prefect": port}
    stack = Stack(mark="m", ports=ports, job_template=str(template))
    furnish(stack)
    assert (pool["type"], pool["base_job_template"]) == ("kubernetes", TEMPLATE)
    changed = {**TEMPLATE, "variables": {**CLOSED, "type": "object"}}
    template.write_text(json.dumps(changed))
    furnish(stack)
    assert pool["base_job_template"] == changed
    with pytest.raises(InputError, match=r"is of type kubernetes.*type process: delete the pool"):
        furnish(stack.model_copy(update={"job_template": ""}))


def test_a_flows_pod_sees_the_stack_of_the_home_that_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = new_stack(None)
    of_another_pod = ProcessRecord(pid=2**22 - 1, birth="elsewhere", log=Path("log"))
    save_record(stack.model_copy(update={"services": {"ray": of_another_pod}}))
    assert load_stack() is None
    monkeypatch.setenv(ELSEWHERE_VARIABLE, "1")
    found = load_stack()
    assert found is not None
    assert Cluster.of(found)._logs is None, "Ray's logs are in the stack's pod"
    with pytest.raises(InputError, match="Put the keys into the Secret"):
        block_secrets("lab")
    save_record(stack)  # it was stopped
    assert load_stack() is None
