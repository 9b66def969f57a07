"""The generation client against a scripted endpoint."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web

from engines.sglang import client as client_module
from engines.sglang.client import GenerationClient
from engines.sglang.routed_batch import FIELD
from engines.types import Sampling
from infra.errors import EngineError, LeaseLost
from tests.parts.engine_replies import Answer, endpoint, good, reply_to, response

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_FIRST_WAIT_S", 0.001)


async def test_turns_of_one_tick_travel_in_equal_batches_and_come_back_in_order() -> None:
    async with endpoint(good) as (url, asked), GenerationClient(url, max_batch=16) as client:
        turns = [client.generate([i, i + 1], Sampling(8, seed=i)) for i in range(40)]
        answers = await asyncio.gather(*turns)
    assert [g.token_ids.tolist() for g in answers] == [[i + 1, i] for i in range(40)]
    assert sorted(len(body["input_ids"]) for body in asked) == [13, 13, 14]
    assert all(np.ptp([ids[0] for ids in body["input_ids"]]) < 14 for body in asked), "neighbours"
    seeds = [s["sampling_seed"] for body in asked for s in body["session_params"][FIELD]]
    assert sorted(seeds) == list(range(40))
    assert answers[0].weight_versions.runs == ((3, 2),)


async def test_a_batch_is_tried_again_after_a_server_fault_and_counted_once() -> None:
    async def fault(_: dict[str, Any]) -> web.Response:
        return web.Response(status=503, text="no_available_workers")

    async with endpoint(fault, fault, good) as (url, asked), GenerationClient(url) as client:
        answers = await asyncio.gather(
            *(client.generate([i], Sampling(4, seed=i)) for i in range(5))
        )
        assert (client.counts.turns, client.counts.retries) == (5, 2)
    assert [g.token_ids.tolist() for g in answers] == [[i] for i in range(5)]
    names = [tuple(body["session_params"].pop("name_of_each")) for body in asked]
    assert len({body.pop("lane") for body in asked}) == 3, "each try may go to another server"
    assert asked[0] == asked[1] == asked[2]
    assert len(set(names)) == 3, "a server may still have the earlier one"


@pytest.mark.parametrize(
    "text", ["<html>busy</html>", "{", "null", '["turn"]', '[{"meta_info": 1}]']
)
async def test_an_answer_that_no_engine_gives_is_a_server_fault(text: str) -> None:
    async def nonsense(_: dict[str, Any]) -> web.Response:
        return web.Response(text=text)

    async with endpoint(nonsense, good) as (url, asked), GenerationClient(url) as client:
        assert (await client.generate([1, 2], Sampling(4))).token_ids.tolist() == [2, 1]
    assert len(asked) == 2


async def test_trying_again_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(_: dict[str, Any]) -> web.Response:
        return web.Response(status=500, text="broken")

    monkeypatch.setattr(client_module, "_PATIENCE_S", 1.0)
    troubles: list[None] = []
    async with endpoint(fault) as (url, asked), GenerationClient(url) as client:
        client.on_trouble = lambda: troubles.append(None)
        with pytest.raises(EngineError, match=r"gave up after \d+ tries: .* \(500\): broken"):
            await client.generate([1], Sampling(4))
    assert len(asked) >= 3
    assert len(troubles) == len(asked) - 1


async def test_tokens_of_weights_that_may_be_half_new_are_asked_for_again() -> None:
    async def half_new(body: dict[str, Any]) -> web.Response:
        return response(body, [reply_to(ids, weight_version="broken") for ids in body["input_ids"]])

    async with endpoint(half_new, good) as (url, asked), GenerationClient(url) as client:
        assert (await client.generate([1, 2], Sampling(4))).token_ids.tolist() == [2, 1]
    assert len(asked) == 2


async def test_while_lost_servers_must_wait_patience_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fault(_: dict[str, Any]) -> web.Response:
        return web.Response(status=503, text="no server")

    monkeypatch.setattr(client_module, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(client_module, "_FIRST_WAIT_S", 0.05)
    async with endpoint(*[fault] * 5, good) as (url, asked), GenerationClient(url) as client:
        client.must_wait = lambda: len(asked) < 6
        assert (await client.generate([1, 2], Sampling(4))).token_ids.tolist() == [2, 1]
        assert client.counts.retries == 5


async def test_servers_are_idle_while_no_turn_is_under_way() -> None:
    async def late(body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.3)
        return await good(body)

    async with endpoint(late) as (url, _), GenerationClient(url) as client:
        began = client.in_flight.idle_seconds
        await asyncio.sleep(0.2)
        waited = client.in_flight.idle_seconds - began
        both = [client.generate([i], Sampling(4)) for i in range(2)]
        await asyncio.gather(*both)
        after = client.in_flight.idle_seconds - began
        assert 0.2 <= waited <= after < waited + 0.1
        await asyncio.sleep(0.1)
        assert client.in_flight.idle_seconds - began >= after + 0.1


async def test_nobody_at_the_address_is_an_engine_error() -> None:
    async with GenerationClient("http://127.0.0.1:9") as client:
        with pytest.raises(EngineError, match=r"gave up after 5 tries: .* no connection"):
            await client.generate([1], Sampling(4))


async def test_a_request_may_queue_for_much_longer_than_a_stall() -> None:
    one_at_a_time = asyncio.Lock()

    async def queues(body: dict[str, Any]) -> web.Response:
        async with one_at_a_time:
            await asyncio.sleep(0.1)
            return await good(body)

    async with (
        endpoint(queues) as (url, asked),
        GenerationClient(url, max_batch=1, stall_s=0.4) as client,
    ):
        began = time.monotonic()
        turns = (client.generate([i], Sampling(1, seed=i)) for i in range(20))
        answers = await asyncio.gather(*turns)
        assert time.monotonic() - began > 1.5
        assert client.counts.retries == 0
    assert [g.token_ids for g in answers] == [[i] for i in range(20)]
    assert len(asked) == 20


async def test_a_request_that_later_ones_overtook_is_lost_and_sent_again() -> None:
    first_seen = asyncio.Event()

    async def loses_the_first(body: dict[str, Any]) -> web.Response:
        if body["input_ids"] == [[0]] and not first_seen.is_set():
            first_seen.set()
            await asyncio.sleep(60)
        return await good(body)

    async with (
        endpoint(loses_the_first) as (url, asked),
        GenerationClient(url, max_batch=1, stall_s=2.0) as client,
    ):
        lost = asyncio.create_task(client.generate([0], Sampling(1)))
        await first_seen.wait()
        others = 0
        while not lost.done():  # others are answered all the time
            await client.generate([7], Sampling(1))
            others += 1
        assert (await lost).token_ids == [0]
        assert client.counts.retries == 1
    assert others > 5
    assert [body["input_ids"] for body in asked].count([[0]]) == 2


async def test_where_nobody_is_answered_every_request_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hangs(_: dict[str, Any]) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(client_module, "_TRIES", 2)
    async with endpoint(hangs) as (url, asked), GenerationClient(url, stall_s=0.1) as client:
        with pytest.raises(EngineError, match=r"up to 1 tokens made no progress in 0 s"):
            await client.generate([1], Sampling(1))
    assert len(asked) == 2


async def test_a_server_that_ends_after_long_work_is_waited_for_as_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ends(_: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response(status=502, text="the server ended")

    monkeypatch.setattr(client_module, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(client_module, "_SERVED_S", 0.4)
    async with endpoint(ends, ends, good) as (url, asked), GenerationClient(url) as client:
        assert (await client.generate([1, 2], Sampling(4))).token_ids.tolist() == [2, 1]
    assert len(asked) == 3


async def test_what_a_lost_server_had_worked_takes_nothing_of_the_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ends(_: dict[str, Any]) -> web.Response:
        await asyncio.sleep(1.95)
        return web.Response(status=502, text="the server ended")

    async def starts(_: dict[str, Any]) -> web.Response:
        return web.Response(status=503, text="no server")

    monkeypatch.setattr(client_module, "_PATIENCE_S", 2.0)
    async with (
        endpoint(ends, starts, starts, good) as (url, asked),
        GenerationClient(url) as client,
    ):
        assert (await client.generate([1, 2], Sampling(4))).token_ids.tolist() == [2, 1]
    assert len(asked) == 4


async def _refused(_: dict[str, Any]) -> web.Response:
    return web.Response(status=400, text="too long")


async def _one_too_few(body: dict[str, Any]) -> web.Response:
    return response(body, [reply_to(ids) for ids in body["input_ids"][1:]])


async def _no_logprobs(body: dict[str, Any]) -> web.Response:
    return response(body, [reply_to(ids, output_token_logprobs=[]) for ids in body["input_ids"]])


async def _unnumbered(body: dict[str, Any]) -> web.Response:
    return response(body, [reply_to(ids, weight_version="default") for ids in body["input_ids"]])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_refused, "too long"),
        (_one_too_few, "asked for 2 turns"),
        (_no_logprobs, "with 0 log-probabilities"),
        (_unnumbered, "'default', not a number"),
    ],
)
async def test_a_reply_that_is_not_what_was_asked_for_is_refused_at_once(
    answer: Answer, words: str
) -> None:
    async with endpoint(answer) as (url, asked), GenerationClient(url) as client:
        turns = [client.generate([i, 9], Sampling(4)) for i in range(2)]
        outcomes = await asyncio.gather(*turns, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, EngineError)]
    assert len(failed) == (1 if answer is _one_too_few else 2)
    assert all(words in str(error) for error in failed)
    assert len(asked) == 1


async def test_spans_become_the_version_of_each_token() -> None:
    async def spanned(body: dict[str, Any]) -> web.Response:
        spans = [{"version": "4", "start": 0, "end": 2}, {"version": "5", "start": 2, "end": 3}]
        return response(body, [reply_to(ids, weight_versions=spans) for ids in body["input_ids"]])

    async with endpoint(spanned) as (url, _), GenerationClient(url) as client:
        generation = await client.generate([1, 2, 3], Sampling(4))
    assert generation.weight_versions.runs == ((4, 2), (5, 1))


@pytest.mark.parametrize("dump", [orjson.dumps, lambda value: json.dumps(value).encode()])
@pytest.mark.parametrize("length", [1, 2, 5])
async def test_logprobs_are_read_alike_however_the_engine_spaces_its_lists(
    dump: Callable[[Any], bytes], length: int
) -> None:
    async def answered(body: dict[str, Any]) -> web.Response:
        turn = reply_to(body["input_ids"][0])
        scored = turn["meta_info"]["output_token_logprobs"]
        for place, entry in enumerate(scored):
            entry[0] = -0.1 - place
        return web.Response(body=dump([turn]))

    async with endpoint(answered) as (url, _), GenerationClient(url) as client:
        generation = await client.generate(list(range(length)), Sampling(8))
    assert generation.token_ids.tolist() == list(range(length))[::-1]
    wanted = np.array([-0.1 - place for place in range(length)], np.float32)
    assert generation.logprobs.tobytes() == wanted.tobytes()


async def test_after_a_lost_lease_no_turn_is_sent() -> None:
    async with endpoint(good) as (url, asked), GenerationClient(url) as client:
        client.refuse(LeaseLost("expired"))
        with pytest.raises(LeaseLost):
            await client.generate([1], Sampling(4))
    assert asked == []


async def test_sticky_turns_name_the_lane_of_their_route() -> None:
    async with (
        endpoint(good) as (url, asked),
        GenerationClient(url, max_batch=2, routing="sticky") as client,
    ):
        for _ in range(2):
            turns = [client.generate([i, 9], Sampling(4, route=f"{i // 2}")) for i in range(4)]
            await asyncio.gather(*turns)
    lanes = {body["input_ids"][0][0]: body["lane"] for body in asked}
    assert len(asked) == 4
    assert len(set(lanes.values())) == 2
    assert [body["lane"] for body in asked[2:]] == [
        lanes[body["input_ids"][0][0]] for body in asked[2:]
    ]


async def test_spread_requests_have_a_key_each() -> None:
    async with endpoint(good) as (url, asked), GenerationClient(url, max_batch=1) as client:
        await asyncio.gather(*[client.generate([i], Sampling(4, route="a")) for i in range(4)])
    assert len({body["lane"] for body in asked}) == 4


async def test_only_so_many_turns_are_at_the_servers_and_the_others_come_when_those_are_over() -> (
    None
):
    now, most = 0, 0

    async def counted(body: dict[str, Any]) -> web.Response:
        nonlocal now, most
        now, most = now + len(body["input_ids"]), max(most, now + len(body["input_ids"]))
        await asyncio.sleep(0.01)
        now -= len(body["input_ids"])
        return await good(body)

    async with (
        endpoint(counted) as (url, _),
        GenerationClient(url, max_batch=2, most_turns=3) as client,
    ):
        turns = [client.generate([i, 7], Sampling(4)) for i in range(10)]
        answers = await asyncio.gather(*turns)
    assert [g.token_ids.tolist() for g in answers] == [[7, i] for i in range(10)]
    assert most == 3


async def test_turns_that_wait_fail_with_the_lease_and_are_cancelled_with_the_client() -> None:
    release = asyncio.Event()

    async def held(body: dict[str, Any]) -> web.Response:
        await release.wait()
        return await good(body)

    async with endpoint(held) as (url, asked), GenerationClient(url, most_turns=1) as client:
        first, second = (asyncio.create_task(client.generate([i], Sampling(4))) for i in range(2))
        while not asked:
            await asyncio.sleep(0.01)
        client.refuse(LeaseLost("expired"))
        release.set()
        assert (await first).token_ids.tolist() == [0]
        with pytest.raises(LeaseLost):
            await second
    release.clear()
    async with endpoint(held) as (url, asked), GenerationClient(url, most_turns=1) as client:
        turns = [asyncio.create_task(client.generate([i], Sampling(4))) for i in range(2)]
        while not asked:
            await asyncio.sleep(0.01)
        await client.close()
        assert all(
            isinstance(e, asyncio.CancelledError)
            for e in await asyncio.gather(*turns, return_exceptions=True)
        )


async def test_a_setting_s_temperature_and_top_p_are_in_the_request() -> None:
    async with endpoint(good) as (url, asked), GenerationClient(url) as client:
        await client.generate([1], Sampling(4, temperature=0.6, top_p=0.95, seed=7))
        await client.generate([1], Sampling(4, seed=8))
    first, second = [each for body in asked for each in body["session_params"][FIELD]]
    assert (first["temperature"], first["top_p"], first["sampling_seed"]) == (0.6, 0.95, 7)
    assert "top_p" not in second
