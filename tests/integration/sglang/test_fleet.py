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

from engines.devices.find_owner import open_owner
from engines.devices.owner import KindStatus
from engines.devices.ray_cluster import driver_id
from engines.devices.units import SERVER_PARTS, OwnerSettings, Request
from engines.sglang.client import GenerationClient
from engines.sglang.fleet import Fleet
from engines.sglang.http import call
from engines.sglang.servers.server_units import ServerTerms
from engines.sglang.spec import FleetSpec
from engines.types import Sampling
from infra.errors import EngineError, InputError, LeaseLost
from tests.parts.ray_parts import own_ray
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration
_GREEDY = Sampling(8, temperature=0.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with own_ray({"TRIBUTARY_HOME": str(folder)}):
        yield folder


@pytest.fixture(scope="module")
def owner(cluster: Path) -> Any:
    settings = OwnerSettings(cluster / "logs", 0, ttl_s=6.0, hung_s=10.0)
    return open_owner("device-owner-of-test", settings)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [tiny_model(folder / str(seed), seed=seed) for seed in range(2)]


async def _lease(owner: Any, model: Path, holder: str, servers: int = 2, **more: Any) -> Fleet:
    return await Fleet.lease(
        FleetSpec(), model, servers, 1, pool_servers=2, holder=holder, owner=owner, **more
    )


async def _status(owner: Any) -> KindStatus:
    return await owner.status.remote("server")


async def _until(owner: Any, holds: Callable[[KindStatus], bool]) -> KindStatus:
    """The first status of which `holds` is true (bounded by the test's own limit)."""
    while not holds(status := await _status(owner)):
        await asyncio.sleep(0.1)
    return status


async def test_a_fleet_serves_what_was_loaded_and_stays_warm(
    owner: Any, models: list[Path]
) -> None:
    async with await _lease(owner, models[0], "first") as fleet:
        assert len(fleet.server_urls) == 2
        first = await fleet.client.generate([1, 2, 3], _GREEDY)
        await fleet.load(models[1], 4)
        second = await fleet.client.generate([1, 2, 3], _GREEDY)
    assert (first.weight_versions.sampled, second.weight_versions.sampled) == ({0}, {4})
    assert first.token_ids.tolist() != second.token_ids.tolist()
    before = (await _status(owner)).running
    start = time.monotonic()
    async with await _lease(owner, models[0], "second") as fleet:
        again = await fleet.client.generate([1, 2, 3], _GREEDY)
    assert again.token_ids.tolist() == first.token_ids.tolist()
    assert (await _status(owner)).running == before
    assert time.monotonic() - start < 30


async def test_a_lease_is_exclusive_and_waits_its_turn(owner: Any, models: list[Path]) -> None:
    fleet = await _lease(owner, models[0], "holder")
    with pytest.raises(EngineError, match="held by holder"):
        await _lease(owner, models[0], "impatient", servers=1, wait_s=0.2)
    waiting = asyncio.create_task(_lease(owner, models[1], "patient", servers=1))
    await _until(owner, lambda status: status.waiting == 1)
    assert not waiting.done()
    await fleet.release()
    patient = await waiting
    assert (await _status(owner)).leases == (("patient", 1),)
    await patient.release()


async def test_two_stages_share_the_servers(owner: Any, models: list[Path]) -> None:
    async with (
        await _lease(owner, models[0], "left", servers=1) as left,
        await _lease(owner, models[1], "right", servers=1) as right,
    ):
        assert not set(left.server_urls) & set(right.server_urls)
        turns = [fleet.client.generate([1, 2, 3], _GREEDY) for fleet in (left, right)]
        one, other = await asyncio.gather(*turns)
    assert one.token_ids.tolist() != other.token_ids.tolist()


async def test_a_lease_that_nobody_renews_is_reclaimed(owner: Any, models: list[Path]) -> None:
    terms = ServerTerms(FleetSpec(), models[0], 1)
    request = Request("server", 1, 2, "silent", terms, 10.0, driver_id())
    grant = await owner.lease.remote(request)
    url = grant.use.server_urls[0]
    await asyncio.to_thread(call, url, "/pause_generation", {"mode": "retract"}, timeout=10)
    await _until(owner, lambda status: not status.leases)
    with pytest.raises(LeaseLost):
        await owner.renew.remote("server", grant.lease_id)
    async with GenerationClient(url) as client:  # a paused one would not answer
        assert len((await client.generate([1, 2, 3], _GREEDY)).token_ids) == 8


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_server_that_dies_or_hangs_is_replaced_and_serves_the_same_weights(
    owner: Any, models: list[Path], hit: signal.Signals
) -> None:
    async with await _lease(owner, models[0], "repaired") as fleet:
        expected = await fleet.client.generate([1, 2, 3], _GREEDY)
        before = await _status(owner)
        os.killpg(before.running["server-1"], hit)
        turns = [fleet.client.generate([1, 2, 3], _GREEDY) for _ in range(32)]
        assert {tuple(g.token_ids.tolist()) for g in await asyncio.gather(*turns)} == {
            tuple(expected.token_ids.tolist())
        }
        await _until(owner, lambda status: status.restarts > before.restarts)
        while len(await asyncio.to_thread(_routed, fleet)) < 2:
            await asyncio.sleep(0.1)


def _routed(fleet: Fleet) -> list[str]:
    workers = call(fleet.router_url, "/workers", timeout=10)["workers"]
    return [worker["url"] for worker in workers if worker["is_healthy"]]


async def test_sleeping_servers_hold_no_memory_and_take_weights_when_they_wake(
    owner: Any, models: list[Path]
) -> None:
    """On a CPU: there a server without weights ends, and is one with its cache again."""
    async with await _lease(owner, models[0], "sleeper", servers=1) as fleet:
        await fleet.load(models[1], 3)
        before = await fleet.client.generate([1, 2, 3], _GREEDY)
        pids = (await _status(owner)).running
        did = await fleet.hold(())
        assert did.given_back == did.asleep > 1e8, "of its processes' own"
        assert did.left == 0
        asleep = await _status(owner)
        assert asleep.leases == (("sleeper", 1),)
        assert len(asleep.running) < len(pids)
        await fleet.hold({"weights"})
        assert set((await fleet.versions()).values()).isdisjoint({"0", "3"}), "nobody knows which"
        await fleet.load(models[1], 3)
        running = (await _status(owner)).running
        did = await fleet.hold(SERVER_PARTS)
        assert did.given_back < 1e6, "a process may free a page on its way"
        assert did.asleep == 0
        assert (await _status(owner)).running == running
        after = await fleet.client.generate([1, 2, 3], _GREEDY)
    assert after.token_ids.tolist() == before.token_ids.tolist()
    assert after.logprobs.tolist() == before.logprobs.tolist()
    assert after.weight_versions.sampled == {3}


async def test_more_servers_than_there_are_is_bad_input(owner: Any, models: list[Path]) -> None:
    with pytest.raises(InputError, match=r"resources\.servers"):
        await _lease(owner, models[0], "greedy", servers=3)
    with pytest.raises(InputError, match="HF folder"):
        await _lease(owner, models[0] / "nowhere", "lost", servers=1)


async def test_nothing_outlives_the_owner(owner: Any) -> None:
    """Last in this file: it ends the owner that the tests above share."""
    pids = list((await _status(owner)).running.values())
    families = [psutil.Process(pid).children(recursive=True) for pid in pids]
    left = [psutil.Process(pid) for pid in pids] + [p for family in families for p in family]
    assert len(left) > len(pids)
    ray.kill(owner)
    gone, alive = await asyncio.to_thread(psutil.wait_procs, left, timeout=30)
    assert not alive
    assert len(gone) == len(left)
