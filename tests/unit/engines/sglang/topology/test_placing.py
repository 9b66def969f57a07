"""Where the servers of a topology lie, what it refuses, and with which words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from engines.sglang import topology as problems_module
from engines.sglang.topology import (
    ServedFleet,
    Topology,
    hosts_of,
    place,
    place_here,
    topology_problems,
)
from infra.errors import InputError

pytestmark = pytest.mark.unit

TWO_HOSTS = [
    {"address": "10.0.0.1", "devices": 8, "kind": "h100"},
    {"address": "10.0.0.2", "devices": 8, "kind": "h200"},
]


def _topology(hosts: list[dict[str, Any]] | None = None, **fleets: dict[str, Any]) -> Topology:
    written = {name: {"model": "m"} | fleet for name, fleet in fleets.items()}
    return Topology.model_validate({"fleets": written} | ({"hosts": hosts} if hosts else {}))


def _placed(topology: Topology) -> dict[str, list[tuple[str, int, int]]]:
    """By server: host, first device and devices of each node."""
    return {
        s.name: [(n.host.address, n.first_device, n.devices) for n in s.nodes]
        for s in place(topology, hosts_of(topology, 8))
    }


def test_servers_take_neighbours_the_largest_first_and_each_role_its_kind_of_device() -> None:
    placed = _placed(
        _topology(
            TWO_HOSTS,
            judge={"servers": 2, "device": "h200"},
            policy={"servers": 2, "tp_per_server": 4},
            reward={"tp_per_server": 2},
        )
    )
    assert placed == {
        "policy-0": [("10.0.0.1", 0, 4)],
        "policy-1": [("10.0.0.1", 4, 4)],
        "reward-0": [("10.0.0.2", 0, 2)],
        "judge-0": [("10.0.0.2", 2, 1)],
        "judge-1": [("10.0.0.2", 3, 1)],
    }


def test_a_server_of_two_hosts_has_half_of_its_devices_on_each() -> None:
    placed = _placed(_topology(TWO_HOSTS, big={"tp_per_server": 16, "hosts_per_server": 2}))
    assert placed == {"big-0": [("10.0.0.1", 0, 8), ("10.0.0.2", 0, 8)]}


def test_disaggregated_servers_have_devices_and_ports_of_their_own() -> None:
    apart = {"disaggregated": {"prefill": 1, "decode": 2}, "tp_per_server": 2}
    servers = place(topology := _topology(judge=apart), hosts_of(topology, 8))
    assert [s.name for s in servers] == ["judge-prefill-0", "judge-decode-0", "judge-decode-1"]
    assert [s.nodes[0].first_device for s in servers] == [0, 2, 4]
    ports = [p for s in servers for p in (s.port, s.bootstrap_port, s.rendezvous_port)]
    assert len(set(ports)) == 9


def test_every_host_finds_the_same_places_and_one_host_any_ports() -> None:
    topology = _topology(TWO_HOSTS, policy={"servers": 3, "tp_per_server": 4})
    assert place(topology, hosts_of(topology, 0)) == place(topology, hosts_of(topology, 8))
    first, again = (place_here({"a": ServedFleet(model="m")})[0] for _ in range(2))
    assert first.port != again.port


def test_without_gpus_a_host_has_as_many_shares_of_its_cores_as_are_wanted() -> None:
    topology = _topology(policy={"servers": 3, "tp_per_server": 2})
    (host,) = hosts_of(topology, 0)
    assert host.devices == 6


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ({"servers": 9, "tp_per_server": 2}, "needs 2 free devices on one host; free are"),
        ({"device": "b200"}, "no host has 'b200'; hosts have h100, h200"),
        ({"tp_per_server": 16}, "spread a server over more hosts"),
    ],
)
def test_a_fleet_without_room_is_refused_with_what_is_free(
    fleet: dict[str, Any], words: str
) -> None:
    topology = _topology(TWO_HOSTS, policy=fleet)
    assert any(words in line for line in topology_problems(topology, 0))
    with pytest.raises(InputError):
        place(topology, hosts_of(topology, 0))


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ({"tp_per_server": 3, "hosts_per_server": 2}, "does not divide tp_per_server (3)"),
        ({"hosts_per_server": 3, "tp_per_server": 3}, "of 2 hosts: state more hosts"),
        ({"tp_per_server": 4, "attention_dp": 3}, "attention_dp is 3, which does not divide"),
        ({"sglang": {"nnodes": 2}}, "sglang.nnodes: write it as `hosts_per_server`"),
        ({"sglang": {"attn_dp_size": 2}}, "write it as `attention_dp`"),
        ({"sglang": {"max_runing_requests": 2}}, "max_running_requests"),
        ({"disaggregated": {}}, "this host has no GPU: write `servers` instead"),
        ({"disaggregated": {}, "routing": "sticky"}, "a request has two servers"),
        ({"sglang": {"disable_radix_cache": True}}, "needs the cache"),
    ],
)
def test_what_cannot_run_is_named_with_the_reason(fleet: dict[str, Any], words: str) -> None:
    found = list(topology_problems(_topology(TWO_HOSTS, policy=fleet), 0))
    assert any(words in line for line in found), found
    assert all(line.startswith("fleets.policy") for line in found)


def test_what_can_run_has_no_problem() -> None:
    fine = {
        "tp_per_server": 4,
        "attention_dp": 2,
        "hosts_per_server": 2,
        "sglang": {"context_length": 8192, "mem_fraction_static": 0.8},
    }
    assert list(topology_problems(_topology(TWO_HOSTS, policy=fine), 0)) == []


def test_where_gpus_are_disaggregation_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems_module, "has_cuda", lambda: True)
    topology = _topology(TWO_HOSTS, policy={"disaggregated": {}})
    assert any("mooncake is not installed" in line for line in topology_problems(topology, 8))
    monkeypatch.setattr(problems_module, "find_spec", lambda name: object())
    assert list(topology_problems(topology, 8)) == []


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"fleets": {}}, "at least 1 item"),
        ({"fleets": {"a": {"model": "m", "servers": 2, "disaggregated": {}}}}, "write one of them"),
        ({"fleets": {"a": {"model": "m"}}, "hosts": [TWO_HOSTS[0]] * 2}, "named twice"),
        ({"fleets": {"a": {"model": "m"}}, "hosts": [{"address": "gpu-1"}]}, "no IPv4 address"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(written: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Topology.model_validate(written)
