"""Fleets on a real Ray: leases, weights, deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from engines.sglang.fleet import Fleet, open_manager
from engines.sglang.http import call
from engines.sglang.servers.manager import ManagerStatus, Request
from engines.sglang.spec import FleetSpec
from engines.types import Sampling
from infra.errors import EngineError, InputError, LeaseLost
from tests.ray_parts import own_ray
from tests.tiny import tiny_model

pytestmark = pytest.mark.integration
_GREEDY = Sampling(8, temperature=0.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_ray({"TRIBUTARY_HOME": str(tmp_path_factory.mktemp("home"))}):
        yield


@pytest.fixture(scope="module")
def manager(cluster: None) -> Any:
    del cluster
    return open_manager("fleet-manager-of-test", ttl_s=6.0, hung_s=10.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [tiny_model(folder / str(seed), seed=seed) for seed in range(2)]


async def _lease(manager: Any, model: Path, holder: str, servers: int = 2, **more: Any) -> Fleet:
    return await Fleet.lease(
        FleetSpec(), model, servers, 1, pool_servers=2, holder=holder, manager=manager, **more
    )


async def _status(manager: Any) -> ManagerStatus:
    return await manager.status.remote()


async def _until(manager: Any, holds: Callable[[ManagerStatus], bool]) -> ManagerStatus:
    """The first status of which `holds` is true (bounded by the test's own limit)."""
    while not holds(status := await _status(manager)):
        await asyncio.sleep(0.1)
    return status


async def test_a_fleet_serves_what_was_loaded_and_stays_warm(
    manager: Any, models: list[Path]
) -> None:
    async with await _lease(manager, models[0], "first") as fleet:
        assert len(fleet.server_urls) == 2
        first = await fleet.client.generate([1, 2, 3], _GREEDY)
        await fleet.load(models[1], 4)
        second = await fleet.client.generate([1, 2, 3], _GREEDY)
    assert (first.weight_versions.sampled, second.weight_versions.sampled) == ({0}, {4})
    assert first.token_ids.tolist() != second.token_ids.tolist()
    before = (await _status(manager)).servers
    start = time.monotonic()
    async with await _lease(manager, models[0], "second") as fleet:
        again = await fleet.client.generate([1, 2, 3], _GREEDY)
    assert again.token_ids.tolist() == first.token_ids.tolist()
    assert (await _status(manager)).servers == before
    assert time.monotonic() - start < 30


async def test_a_lease_is_exclusive_and_waits_its_turn(manager: Any, models: list[Path]) -> None:
    fleet = await _lease(manager, models[0], "holder")
    with pytest.raises(EngineError, match="held by holder"):
        await _lease(manager, models[0], "impatient", servers=1, wait_s=0.2)
    waiting = asyncio.create_task(_lease(manager, models[1], "patient", servers=1))
    await _until(manager, lambda status: status.waiting == 1)
    assert not waiting.done()
    await fleet.release()
    patient = await waiting
    assert (await _status(manager)).leases == (("patient", 1),)
    await patient.release()


async def test_two_stages_share_the_servers(manager: Any, models: list[Path]) -> None:
    async with (
        await _lease(manager, models[0], "left", servers=1) as left,
        await _lease(manager, models[1], "right", servers=1) as right,
    ):
        assert not set(left.server_urls) & set(right.server_urls)
        turns = [fleet.client.generate([1, 2, 3], _GREEDY) for fleet in (left, right)]
        one, other = await asyncio.gather(*turns)
    assert one.token_ids.tolist() != other.token_ids.tolist()


async def test_a_lease_that_nobody_renews_is_reclaimed(manager: Any, models: list[Path]) -> None:
    driver = ray.get_runtime_context().get_job_id()
    request = Request(FleetSpec(), models[0], 1, 1, 2, "silent", driver, 10.0)
    grant = await manager.lease.remote(request)
    await _until(manager, lambda status: not status.leases)
    with pytest.raises(LeaseLost):
        await manager.renew.remote(grant.lease_id, grant.token)


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_server_that_dies_or_hangs_is_replaced_and_serves_the_same_weights(
    manager: Any, models: list[Path], hit: signal.Signals
) -> None:
    async with await _lease(manager, models[0], "repaired") as fleet:
        expected = await fleet.client.generate([1, 2, 3], _GREEDY)
        before = await _status(manager)
        os.killpg(before.servers["server-1"], hit)
        turns = [fleet.client.generate([1, 2, 3], _GREEDY) for _ in range(32)]
        assert {tuple(g.token_ids.tolist()) for g in await asyncio.gather(*turns)} == {
            tuple(expected.token_ids.tolist())
        }
        await _until(manager, lambda status: status.restarts > before.restarts)
        while len(await asyncio.to_thread(_routed, fleet)) < 2:
            await asyncio.sleep(0.1)


def _routed(fleet: Fleet) -> list[str]:
    workers = call(fleet.router_url, "/workers", timeout=10)["workers"]
    return [worker["url"] for worker in workers if worker["is_healthy"]]


async def test_more_servers_than_there_are_is_bad_input(manager: Any, models: list[Path]) -> None:
    with pytest.raises(InputError, match=r"resources\.servers"):
        await _lease(manager, models[0], "greedy", servers=3)
    with pytest.raises(InputError, match="HF folder"):
        await _lease(manager, models[0] / "nowhere", "lost", servers=1)


async def test_nothing_outlives_the_manager(manager: Any) -> None:
    """Last in this file: it ends the manager that the tests above share."""
    pids = list((await _status(manager)).servers.values())
    families = [psutil.Process(pid).children(recursive=True) for pid in pids]
    left = [psutil.Process(pid) for pid in pids] + [p for family in families for p in family]
    assert len(left) > len(pids)
    ray.kill(manager)
    gone, alive = await asyncio.to_thread(psutil.wait_procs, left, timeout=30)
    assert not alive
    assert len(gone) == len(left)
