"""Hosts as the owner of devices numbers them, from what Ray says of its nodes."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from engines.devices import ray_cluster as hosts_module
from engines.devices.ray_cluster import Hosts, connect
from infra.errors import EngineError, InputError

pytestmark = pytest.mark.unit


def _node(node: str, address: str, gpus: int, *, alive: bool = True) -> dict[str, Any]:
    resources = {"CPU": 64.0} | ({"GPU": float(gpus)} if gpus else {})
    return {"NodeID": node, "NodeManagerAddress": address, "Alive": alive, "Resources": resources}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the head says; a test changes it."""
    nodes = [_node("head", "10.0.0.9", 4)]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(hosts_module, "own_node", lambda: "head")
    return nodes


def test_the_own_host_comes_first_and_others_by_address(cluster: list[dict[str, Any]]) -> None:
    cluster += [_node("y", "10.0.0.7", 8), _node("x", "10.0.0.2", 8), _node("z", "10.0.0.1", 0)]
    hosts = Hosts(4)
    hosts.look()
    assert [host.address for host in hosts.known] == ["", "10.0.0.2", "10.0.0.7"], "with GPUs"
    assert [host.first_gpu for host in hosts.known] == [0, 6, 15]
    assert hosts.with_gpu(3) is hosts.own
    assert hosts.with_gpu(15).address == "10.0.0.7"


def test_a_host_that_comes_back_has_the_numbers_that_it_had(cluster: list[dict[str, Any]]) -> None:
    cluster.append(_node("x", "10.0.0.2", 8))
    hosts = Hosts(4)
    hosts.look()
    cluster[1] = _node("x", "10.0.0.2", 8, alive=False)
    cluster.append(_node("w", "10.0.0.3", 8))
    hosts.look()
    assert hosts.living("x") is None
    with pytest.raises(EngineError, match="the host of GPU 5 is lost"):
        hosts.with_gpu(5)
    cluster.append(_node("again", "10.0.0.2", 8))
    hosts.look()
    assert [(host.node, host.first_gpu) for host in hosts.known] == [
        ("", 0), ("again", 5), ("w", 14),
    ]  # fmt: skip


def test_without_gpus_all_hosts_take_part(cluster: list[dict[str, Any]]) -> None:
    cluster[0] = _node("head", "10.0.0.9", 0)
    cluster.append(_node("x", "10.0.0.2", 0))
    hosts = Hosts(0)
    hosts.look()
    assert [host.num_gpus for host in hosts.known] == [0, 0]


def test_without_an_address_of_ray_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match="start the stack with `tributary up`") as raised:
        connect()
    assert not raised.value.retryable
