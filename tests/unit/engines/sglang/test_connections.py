"""A client has no more connections at once than its process may have."""

from __future__ import annotations

import asyncio
import resource

import pytest
from aiohttp import web

from engines.sglang.client import GenerationClient, most_connections
from engines.sglang.spec import FleetSpec
from engines.types import Sampling

pytestmark = pytest.mark.unit
TURN = {
    "output_ids": [7],
    "meta_info": {
        "finish_reason": {"type": "stop"},
        "weight_version": "0",
        "output_token_logprobs": [[-0.5, 7, None]],
    },
}


async def test_requests_beyond_half_of_the_files_wait_for_a_connection() -> None:
    most = under_way = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.002)
        under_way -= 1
        return web.json_response([TURN])

    app = web.Application()
    app.router.add_post("/generate", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        client = GenerationClient(f"http://127.0.0.1:{runner.addresses[0][1]}", max_batch=1)
    finally:  # the endpoint opens files in this process, too
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    async with client:
        await asyncio.gather(*[client.generate([n], Sampling(4)) for n in range(400)])
    await runner.cleanup()
    assert most == 50


def test_a_process_without_a_limit_has_fewer_connections_than_there_are_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert most_connections() == 16_384


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 4096),
        ({"max_turns_per_server": 64}, 64),
        ({"sglang": {"max_running_requests": 128}}, 4096),
        ({"sglang": {"max_running_requests": 9000}}, 9000),
        ({"sglang": {"dp_size": 4}}, 4 * 4096),
    ],
)
def test_a_server_gets_no_more_turns_than_it_may_run(
    given: dict[str, object], expected: int
) -> None:
    assert FleetSpec.model_validate(given).most_turns == expected
