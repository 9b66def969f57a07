"""Which ranks a lease gets when there are several hosts, and on one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from engines.devices import ray_cluster as hosts_module
from engines.devices.host_agent import HostAgent
from engines.devices.lease import Lease
from engines.devices.ray_cluster import Host
from engines.devices.units import OwnerSettings, Request
from engines.devices.waiting_time import ProcessAddress
from engines.megatron.ranks.rank_group import RankTerms
from engines.megatron.ranks.rank_units import RankUnits
from engines.megatron.ranks.trainer_group import neighbours
from engines.megatron.spec import Parallel
from engines.sglang.servers import host as server_host

pytestmark = pytest.mark.unit


def _node(index: int, gpus: int) -> dict[str, Any]:
    """As Ray tells of one."""
    return {
        "NodeID": f"n{index}", "NodeManagerAddress": f"10.0.0.{index}", "Alive": True,
        "Resources": {"GPU": float(gpus)},
    }  # fmt: skip


def _cluster(monkeypatch: pytest.MonkeyPatch, gpus: Sequence[int]) -> list[dict[str, Any]]:
    """What Ray says of hosts with these GPUs, the owner's first; a test changes it."""
    nodes = [_node(index, number) for index, number in enumerate(gpus)]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(hosts_module, "own_node", lambda: "n0")
    return nodes


def _units(
    monkeypatch: pytest.MonkeyPatch, logs: Path, gpus: Sequence[int], count: int
) -> RankUnits:
    """On hosts with these GPUs, the owner's first."""
    _cluster(monkeypatch, gpus)
    agent = HostAgent(logs, gpus[0])
    agent.hosts.look()
    units = RankUnits(agent, OwnerSettings(logs, gpus[0]))
    units.grow(count)
    return units


def _chosen(units: RankUnits, free: Sequence[int], count: int, tp: int) -> list[str]:
    request = Request("rank", count, count, "test", RankTerms(tp))
    return list(units.choose([f"rank-{i}" for i in free], request))


def test_on_one_host_the_first_free_ranks_are_taken_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """More ranks than GPUs: neighbours still have different GPUs."""
    units = _units(monkeypatch, tmp_path, [2], 4)
    assert _chosen(units, [0, 1, 2, 3], 4, 2) == ["rank-0", "rank-1", "rank-2", "rank-3"]
    assert _chosen(units, [1, 2, 3], 2, 2) == ["rank-1", "rank-2"]


def test_a_group_on_several_hosts_is_taken_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    units = _units(monkeypatch, tmp_path, [2, 2], 4)
    assert _chosen(units, [1, 2, 3], 2, 2) == ["rank-2", "rank-3"]
    assert _chosen(units, [1, 2], 2, 2) == [], "it waits for a host's"
    assert _chosen(units, [1, 2], 2, 1) == ["rank-1", "rank-2"]
    assert _chosen(units, [0, 1, 2, 3], 4, 2) == ["rank-0", "rank-1", "rank-2", "rank-3"]


def test_ranks_have_gpus_by_their_number_in_the_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    units = _units(monkeypatch, tmp_path, [2, 2], 4)
    request = Request("rank", 4, 4, "test", RankTerms(2))
    found = [units.gpus(f"rank-{i}", request) for i in range(4)]
    assert found == [{0}, {1}, {3}, {4}], "2 is left out between the hosts"


def test_without_gpus_on_the_head_ranks_are_where_gpus_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    units = _units(monkeypatch, tmp_path, [0, 2], 2)
    request = Request("rank", 2, 2, "test", RankTerms())
    assert [units.gpus(f"rank-{i}", request) for i in range(2)] == [{1}, {2}]


class _Actor:
    """A rank that is there at once; `place` and `stop` are called as Ray's methods are."""

    @property
    def place(self) -> _Actor:
        return self

    async def remote(self) -> ProcessAddress:
        return ProcessAddress("10.0.0.1", 1, "")


async def test_a_warm_rank_moves_to_a_host_that_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[str] = []

    def start(agent: HostAgent, cls: type, env: Any, host: Host) -> _Actor:
        started.append(host.address)
        return _Actor()

    monkeypatch.setattr(HostAgent, "start_actor", start)
    monkeypatch.setattr(HostAgent, "end_actor", lambda *_: started.append("ended"))
    nodes = _cluster(monkeypatch, [0])
    agent = HostAgent(tmp_path, 0)
    agent.hosts.look()
    units = RankUnits(agent, OwnerSettings(tmp_path, 0))
    units.grow(2)
    lease = Lease("1", ("rank-0", "rank-1"), "test", "", 0.0)
    await units.prepare(lease, RankTerms())
    assert started == ["", ""], "both on the owner's host"
    nodes.append(_node(1, 0))
    agent.hosts.look()
    await units.prepare(lease, RankTerms())
    assert started[2:] == ["ended", "10.0.0.1"], "rank 0 stays warm"


async def test_ranks_on_gpus_share_the_cores_and_have_the_servers_nccl_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[dict[str, str]] = []

    def start(agent: HostAgent, cls: type, environment: dict[str, str], host: Host) -> _Actor:
        started.append(environment)
        return _Actor()

    monkeypatch.setattr(HostAgent, "start_actor", start)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(server_host, "has_cuda", lambda: True)
    monkeypatch.setattr(server_host, "use_toolkit", lambda: None)
    for name in ("CUDA_VISIBLE_DEVICES", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")  # a person's, for the whole stack
    units = _units(monkeypatch, tmp_path, [8], 2)
    await units.prepare(Lease("1", ("rank-0", "rank-1"), "test", "", 0.0), RankTerms())
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in started] == ["0", "1"]
    # Ray gives a process one thread if it asks for no core, which an offloaded optimizer would use.
    assert {rank["OMP_NUM_THREADS"] for rank in started} == {"8"}
    server_host.prepare_environment()
    for name, value in (("NCCL_CUMEM_ENABLE", "0"), ("NCCL_NVLS_ENABLE", "1")):
        assert {rank[name] for rank in started} == {os.environ[name]} == {value}


def test_groups_of_policy_and_critic_are_each_on_one_host() -> None:
    assert neighbours(Parallel(tp=2, dp=2), Parallel(tp=2)) == 2
    assert neighbours(Parallel(tp=2, dp=2), Parallel(tp=4)) == 4
    assert neighbours(Parallel(tp=2, dp=2), Parallel(tp=1)) == 5, "two groups of two and one rank"
    assert neighbours(Parallel(tp=2, dp=2), Parallel(tp=3)) == 7
