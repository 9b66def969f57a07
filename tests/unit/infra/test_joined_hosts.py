"""A host that joins the stack of another one: what it knows, what it refuses, who sees it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from infra.access import JOINED_HOST_VARIABLE, key, listening_host, take_key
from infra.errors import InfrastructureError, InputError
from infra.home import JOINED_HOME_VARIABLE, home
from infra.processes.children import ProcessRecord, birth_of
from infra.stack import Stack, up
from infra.stack.doctor import hosts_in
from infra.stack.record import address_towards, load_record, new_stack, save_record
from infra.stack.services import services

pytestmark = pytest.mark.unit
KEY = "k" * 32
_GIB = 2**30


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRIBUTARY_KEY", raising=False)
    return tmp_path / "home"


@pytest.fixture
def joined() -> Stack:
    return new_stack(None).model_copy(update={"head": "10.0.0.1:20123", "host": "10.0.0.2"})


def test_only_a_ray_node_runs_there(joined: Stack) -> None:
    (service,) = services(joined)
    assert service.name == "ray"
    assert "--address=10.0.0.1:20123" in service.command
    assert "--node-ip-address=10.0.0.2" in service.command
    assert "--head" not in service.command


def test_its_own_home_and_address_stand_above_those_of_the_job(
    joined: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in joined.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "of-the-head"))
    monkeypatch.setenv("TRIBUTARY_HOST", "10.0.0.1")
    assert home() == tmp_path / "home"
    monkeypatch.setenv(JOINED_HOST_VARIABLE, "127.0.0.1")
    assert listening_host() == "127.0.0.1"
    assert os.environ[JOINED_HOME_VARIABLE] == str(tmp_path / "home")


def test_it_needs_the_key_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="set TRIBUTARY_KEY to what the file `key`"):
        take_key("10.0.0.1:20123")
    monkeypatch.setenv("TRIBUTARY_KEY", KEY)
    take_key("10.0.0.1:20123")
    monkeypatch.delenv("TRIBUTARY_KEY")
    take_key("10.0.0.1:20123")
    assert key() == KEY


def test_addresses_that_cannot_be_joined_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="--join somewhere: write HOST:PORT"):
        address_towards("somewhere")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match="this host itself"):
            address_towards(f"127.0.0.1:{port}")
    with pytest.raises(InfrastructureError, match="nothing answers at"):
        address_towards(f"127.0.0.1:{port}")


def test_a_running_stack_joins_nobody_and_a_joined_host_starts_no_stack(tmp_path: Path) -> None:
    running = ProcessRecord(pid=os.getpid(), birth=birth_of(os.getpid()), log=tmp_path / "log")
    alone = new_stack(None).model_copy(update={"services": {"ray": running}})
    save_record(alone)
    with pytest.raises(InputError, match=r"a stack of its own.*--join 10\.0\.0\.1:20123"):
        up(join="10.0.0.1:20123")
    save_record(alone.model_copy(update={"head": "10.0.0.1:20123"}))
    with pytest.raises(InputError, match=r"has joined 10\.0\.0\.1:20123: `tributary down` first"):
        up()
    record = load_record()
    assert record is not None
    assert record.head == "10.0.0.1:20123"


def _node(address: str, state: str, *, is_head: bool = False, gpus: int = 0) -> dict[str, Any]:
    """As Ray 2.60's dashboard tells of one; of a node that ended it knows less."""
    raylet: dict[str, Any] = {
        "state": state, "isHeadNode": is_head, "nodeManagerAddress": address,
        "nodeManagerHostname": f"host-{address[-1]}",
    }  # fmt: skip
    if state != "ALIVE":
        return {"raylet": raylet}
    raylet["resourcesTotal"] = {"GPU": float(gpus), "CPU": 64.0}
    return {"raylet": raylet, "mem": [8 * _GIB, 3 * _GIB, 62.5, 5 * _GIB]}


def test_hosts_are_shown_once_the_head_first_as_they_are_now() -> None:
    nodes = [
        _node("10.0.0.3", "DEAD"),
        _node("10.0.0.2", "DEAD"),
        _node("10.0.0.2", "ALIVE", gpus=8),
        _node("10.0.0.9", "ALIVE", is_head=True),
    ]
    hosts = hosts_in({"data": {"summary": nodes}})
    assert [(h.address, h.is_alive, h.is_head, h.gpus, h.free_gib) for h in hosts] == [
        ("10.0.0.9", True, True, 0, 3.0),
        ("10.0.0.2", True, False, 8, 3.0),
        ("10.0.0.3", False, False, 0, 0.0),
    ]
    assert hosts_in(None) == []
