"""Turns that nobody waits for are aborted at all servers behind a router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from engines.sglang.client import GenerationClient
from engines.sglang.routed_batch import names_of, pack, unpack
from engines.types import Sampling
from tests.parts.engine_replies import event, response

pytestmark = pytest.mark.unit


@dataclass(slots=True)
class _Router:
    """Holds every request back until it is let go, and counts what its servers are told."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    aborted: list[str] = field(default_factory=list[str])
    """as "server turn" """
    came: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """a caller closed its connection before it was answered"""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    abort_hangs: bool = False
    first_is_done: bool = False
    """the first turn is answered at once"""

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.came.set()
        stream = web.StreamResponse()
        if self.first_is_done:
            await stream.prepare(request)
            await stream.write(event(0, _reply(body["input_ids"][0])))
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return response(body, [_reply(ids) for ids in body["input_ids"]])

    async def workers(self, _: web.Request) -> web.Response:
        workers = [{"url": f"{self.url}/{name}"} for name in ("first", "second")]
        return web.json_response({"workers": workers})

    async def abort(self, request: web.Request) -> web.Response:
        if self.abort_hangs:
            await asyncio.sleep(60)
        turn = (await request.json())["rid"]
        self.aborted.append(f"{request.match_info['server']} {turn}")
        self.told.set()
        return web.Response()

    def names(self) -> list[str]:
        """Of the turns of the first request."""
        return self.asked[0]["session_params"]["name_of_each"]


def _reply(ids: list[int]) -> dict[str, Any]:
    return {
        "output_ids": ids,
        "meta_info": {
            "finish_reason": {"type": "stop"},
            "weight_version": "0",
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        },
    }


@asynccontextmanager
async def _router() -> AsyncGenerator[_Router]:
    router = _Router()
    app = web.Application()
    app.router.add_post("/generate", router.generate)
    app.router.add_get("/workers", router.workers)
    app.router.add_post("/{server}/abort_request", router.abort)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    router.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield router
    finally:
        await runner.cleanup()


async def _until(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 10)


async def test_a_cancelled_turn_is_aborted_everywhere_and_its_neighbours_are_answered() -> None:
    async with _router() as router, GenerationClient(router.url) as client:
        turns = [asyncio.create_task(client.generate([i], Sampling(4))) for i in range(3)]
        await _until(router.came)
        turns[1].cancel()
        await _until(router.told)
        router.goes_on.set()
        answers = await asyncio.gather(turns[0], turns[2])
        assert client.in_flight.turns == 0
        assert client.counts.turns == 2
    assert [answer.token_ids.tolist() for answer in answers] == [[0], [2]]
    second = router.names()[1]
    assert set(router.aborted) == {f"first {second}", f"second {second}"}


async def test_a_request_of_which_all_turns_are_cancelled_ends() -> None:
    async with _router() as router, GenerationClient(router.url) as client:
        turns = [asyncio.create_task(client.generate([i], Sampling(4))) for i in range(2)]
        await _until(router.came)
        for turn in turns:
            turn.cancel()
        await _until(router.left)
        await _until(router.told)
    assert {told.split()[1] for told in router.aborted} == set(router.names())
    assert len(router.asked) == 1


async def test_a_request_ends_when_its_only_turn_without_an_answer_is_cancelled() -> None:
    async with _router() as router, GenerationClient(router.url) as client:
        router.first_is_done = True
        first, second = (asyncio.create_task(client.generate([i], Sampling(4))) for i in range(2))
        assert (await first).token_ids.tolist() == [0]
        second.cancel()
        await _until(router.left)
        await _until(router.told)
    assert {told.split()[1] for told in router.aborted} == {router.names()[1]}


async def test_a_turn_that_is_cancelled_at_once_is_not_sent() -> None:
    async with _router() as router, GenerationClient(router.url) as client:
        turn = asyncio.create_task(client.generate([1], Sampling(4)))
        asyncio.get_running_loop().call_soon(turn.cancel)
        with pytest.raises(asyncio.CancelledError):
            await turn
        await asyncio.sleep(0.05)
    assert not router.asked
    assert not router.aborted


async def test_a_client_that_closes_aborts_what_is_under_way() -> None:
    async with _router() as router:
        async with GenerationClient(router.url) as client:
            turn = asyncio.create_task(client.generate([1], Sampling(4)))
            await _until(router.came)
        with pytest.raises(asyncio.CancelledError):
            await turn
    (name,) = router.names()
    assert sorted(router.aborted) == [f"first {name}", f"second {name}"]


async def test_a_server_without_our_plugin_hears_of_the_name_in_its_own_field() -> None:
    async with _router() as router, GenerationClient(router.url, max_batch=1) as client:
        turn = asyncio.create_task(client.generate([1], Sampling(4)))
        await _until(router.came)
        turn.cancel()
        await _until(router.told)
    assert "session_params" not in router.asked[0]
    name = router.asked[0]["rid"]
    assert {told.split()[1] for told in router.aborted} == {f"{name}_0"}, "as SGLang calls it"


async def test_servers_that_do_not_answer_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.sglang.aborts._CLOSE_S", 0.1)
    async with _router() as router:
        router.abort_hangs = True
        async with GenerationClient(router.url) as client:
            turn = asyncio.create_task(client.generate([1], Sampling(4)))
            await _until(router.came)
            turn.cancel()
            await _until(router.left)
    assert not router.aborted


@pytest.mark.parametrize("count", [1, 2, 10, 11, 16])
def test_no_sequence_has_a_name_with_which_another_ones_begins(count: int) -> None:
    names = names_of("3f", count)
    assert len(names) == count
    assert not any(a != b and a.startswith(b) for a in names for b in names)


def test_the_plugin_gives_each_sequence_of_a_batch_its_name() -> None:
    class Request:
        def __init__(self, body: dict[str, Any]) -> None:
            self.__dict__ = {"rid": None, **body}

    request = Request(pack([[1], [2]], [{}, {}], "3f"))
    unpack(request)
    assert request.__dict__["rid"] == ["3f_0", "3f_1"]
