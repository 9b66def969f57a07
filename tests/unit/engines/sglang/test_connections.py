"""A client has no more connections at once than its process may have, and goes where it is told."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from engines.sglang import answers, client, http
from engines.sglang.aborts import Aborts
from engines.sglang.client import GenerationClient, most_connections
from engines.sglang.roles.token_scores import Scorer
from engines.sglang.spec import FleetSpec
from engines.types import Sampling
from infra.access import forget_key, note_key, required_key
from infra.errors import EngineError

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


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_server_leads_a_request_elsewhere(status: int) -> None:
    """With the prompt, and for us from where only this machine reaches."""
    came: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        came.append(request.path)
        moved = {"Location": f"http://{request.host}/elsewhere"}
        return web.json_response([TURN], status=status, headers=moved)

    async with _served(answer) as url:
        async with GenerationClient(url, max_batch=1) as client:
            with pytest.raises(EngineError, match="leads elsewhere"):
                await client.generate([1], Sampling(4))
        scorer = Scorer(url)
        with pytest.raises(EngineError, match="leads elsewhere"):
            await scorer.logprob([1, 2, 3], 1)
        await scorer.close()
    assert came == ["/generate", "/generate"]


async def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_ANSWERED", 1000)
    for module in (client, answers):
        monkeypatch.setattr(module, "MOST_OF_TURN", 2000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b"[" * 500)
                await asyncio.sleep(0)
        return response

    async with _served(endless) as url, GenerationClient(url, max_batch=2) as asking:
        scorer, aborts = Scorer(url), Aborts(url, asking._connections)
        with pytest.raises(EngineError, match="more than 2,000 bytes"):
            await asking.generate([1], Sampling(4))
        both = [asking.generate([n], Sampling(4)) for n in range(2)]
        for found in await asyncio.gather(*both, return_exceptions=True):
            assert "more than 2,000 bytes" in str(found)
        with pytest.raises(EngineError, match="more than 1,000 bytes"):
            await scorer.logprob([1, 2, 3], 1)
        assert await aborts._asked("GET", url, "/workers") == b""
        with pytest.raises(EngineError, match="more than 1,000 bytes"):
            await asyncio.to_thread(http.call, url, "/generate", {}, timeout=10)
        await scorer.close()


async def test_a_score_that_is_no_json_is_an_engine_s_fault() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async with _served(answer) as url:
        scorer = Scorer(url)
        with pytest.raises(EngineError, match="did not answer with JSON: b'<html>'"):
            await scorer.logprob([1, 2, 3], 1)
        await scorer.close()


async def test_our_own_key_goes_nowhere_where_a_router_of_others_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    required_key()
    given: dict[str, str] = {}
    asked = asyncio.Event()

    async def told(request: web.Request) -> web.Response:
        given[f"http://{request.host}{request.path}"] = request.headers.get("Authorization", "")
        if request.path == "/generate":
            asked.set()
            await asyncio.sleep(60)
        return web.json_response({"workers": [{"url": stranger}]})

    async with _served(told) as stranger, _served(told) as theirs:
        note_key(theirs, "their-key")
        async with GenerationClient(theirs) as client:
            asking = asyncio.create_task(client.generate([1], Sampling(4)))
            await asked.wait()
            asking.cancel()
            forget_key(theirs)
    assert f"{stranger}/abort_request" in given
    assert set(given.values()) == {"Bearer their-key"}


@asynccontextmanager
async def _served(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # an answer may take its time
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
