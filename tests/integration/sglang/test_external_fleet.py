"""Leases on real servers of others: exclusive, watched, and left as they were found."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engines.sglang.client import GenerationClient
from engines.sglang.external.server_lock import ServerLock
from engines.sglang.fleet import Fleet
from engines.sglang.http import call
from engines.sglang.spec import FleetSpec
from engines.types import Generation, Sampling
from engines.weights.transport import ServerWeights, server_weights
from infra.errors import EngineError, InputError, LeaseLost
from tests.integration.conftest import SglangPair
from tests.parts.whole_weights import push

pytestmark = pytest.mark.integration

_VICTIM = """
import sys
from pathlib import Path
from engines.sglang.external.held_servers import HeldServers
from engines.weights.disk import load_folder
held = HeldServers(sys.argv[2:], 0)
assert not held.hold()
load_folder(Path(sys.argv[1]), sys.argv[2:], 5)
print("pushed", flush=True)
sys.stdin.read()
"""


async def _lease(pair: SglangPair, model: Path, wait_s: float = 0.0) -> Fleet:
    spec = FleetSpec(external=tuple(pair.urls))
    return await Fleet.lease(spec, model, 1, 1, 1, "test", wait_s=wait_s)


def _held(pair: SglangPair) -> list[ServerWeights]:
    return [server_weights(url) for url in pair.urls]


async def _turns(client: GenerationClient) -> list[Generation]:
    samplings = [Sampling(12, seed=seed) for seed in range(24)]
    return await asyncio.gather(*[client.generate([5, 6, 7], s) for s in samplings])


def _bits(turns: list[Generation]) -> list[tuple[list[int], bytes]]:
    return [(t.token_ids.tolist(), np.asarray(t.logprobs).tobytes()) for t in turns]


def _routed(fleet: Fleet) -> list[str]:
    workers = call(fleet.router_url, "/workers", timeout=10)["workers"]
    return [worker["url"] for worker in workers if worker["is_healthy"]]


async def _until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_lease_generates_what_servers_of_ours_do_excludes_others_and_leaves_no_trace(
    external_pair: SglangPair,
) -> None:
    before = _held(external_pair)
    fleet = await _lease(external_pair, external_pair.other_model)
    leased = await _turns(fleet.client)
    assert {v for turn in leased for v in turn.weight_versions.sampled} == {0}
    with pytest.raises(EngineError, match="is in use by another run of Tributary"):
        await _lease(external_pair, external_pair.model)
    await fleet.load(external_pair.model, 4)
    assert _held(external_pair) == [ServerWeights("4", before[0].checksum)] * 2
    await asyncio.to_thread(push, external_pair.other_model, fleet.server_urls, 5)
    await fleet.release()
    assert _held(external_pair) == before

    await asyncio.to_thread(external_pair.prepare, FleetSpec(), external_pair.other_model)
    async with GenerationClient(external_pair.router.url) as client:
        assert _bits(await _turns(client)) == _bits(leased)


async def test_a_server_that_dies_is_left_out_and_taken_back_with_the_present_weights(
    external_pair: SglangPair,
) -> None:
    before = _held(external_pair)
    first, second = external_pair.urls
    fleet = await _lease(external_pair, external_pair.model)
    try:
        os.killpg(external_pair.server("server-1").pid, signal.SIGKILL)
        assert len(await _turns(fleet.client)) == 24
        await _until(lambda: fleet.server_urls == [first])
        await asyncio.to_thread(push, external_pair.other_model, fleet.server_urls, 3)
        await asyncio.to_thread(external_pair.restart, "server-1")
        await _until(lambda: fleet.server_urls == [first, second])
        assert [held.version for held in _held(external_pair)] == ["3", "0"]
        assert {v for t in await _turns(fleet.client) for v in t.weight_versions.sampled} == {3}
        await asyncio.to_thread(push, external_pair.other_model, [second], 3)
        await _until(lambda: set(_routed(fleet)) == {first, second})
        assert len({held.checksum for held in _held(external_pair)}) == 1
    finally:
        await fleet.release()
    assert _held(external_pair) == before


async def test_weights_that_could_not_be_given_back_are_not_taken(
    external_pair: SglangPair,
) -> None:
    await asyncio.to_thread(push, external_pair.other_model, external_pair.urls, 8)
    before = _held(external_pair)
    with pytest.raises(InputError, match="version '8' that were pushed to it and are in no folder"):
        await _lease(external_pair, external_pair.model)
    assert _held(external_pair) == before


def test_servers_of_a_run_that_is_killed_get_their_own_weights_back(
    external_pair: SglangPair,
) -> None:
    before = _held(external_pair)
    command = [sys.executable, "-c", _VICTIM, str(external_pair.other_model), *external_pair.urls]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"pushed\n"
        assert {held.version for held in _held(external_pair)} == {"5"}
        victim.kill()
    deadline = time.monotonic() + 60
    while _held(external_pair) != before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for url in external_pair.urls:
        lock = ServerLock(url, 10.0)
        while not lock.acquire():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        lock.release()


def test_a_right_that_nobody_renews_ends_and_its_holder_is_told(external_pair: SglangPair) -> None:
    url = external_pair.urls[0]
    first, second = ServerLock(url, 2.0), ServerLock(url, 30.0)
    assert first.acquire()
    first.renew()
    assert not second.acquire()
    first.renew()
    deadline = time.monotonic() + 30
    while not second.acquire():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    with pytest.raises(LeaseLost):
        first.renew()
    first.release()
    second.renew()
    second.release()
