"""Answers that come as a stream: each turn has its own as soon as it is done."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias

import numpy as np
import orjson
import pytest
from aiohttp import web

from engines.algorithms.spec import Keep
from engines.sglang import client
from engines.sglang.client import GenerationClient
from engines.sglang.routed_batch import FIELD, together
from engines.types import Generation, Sampling
from infra.errors import EngineError
from tests.parts.engine_replies import LAST, Answer, endpoint, event, good, reply_to, response

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_WAIT_S", "_LONGEST_WAIT_S"):
        monkeypatch.setattr(client, name, 0.001)


_Said: TypeAlias = Callable[[dict[str, Any], web.StreamResponse], Awaitable[None]]


def _streamed(say: _Said) -> Answer:
    """A stream of which `say` writes the events."""

    async def answer(body: dict[str, Any], request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await say(body, stream)
        return stream

    return answer


async def test_a_turn_is_answered_when_it_is_done_and_its_place_is_free() -> None:
    goes_on = asyncio.Event()

    async def second_first(body: dict[str, Any], stream: web.StreamResponse) -> None:
        first, second = (event(i, reply_to(ids)) for i, ids in enumerate(body["input_ids"]))
        await stream.write(second[:40])  # an event may come in pieces, and two in one
        await stream.write(second[40:])
        await goes_on.wait()
        await stream.write(first + LAST)

    async with (
        endpoint(_streamed(second_first), good) as (url, asked),
        GenerationClient(url, most_turns=2) as client,
    ):
        held, short, third = (
            asyncio.create_task(client.generate([i, 9], Sampling(4))) for i in range(3)
        )
        async with asyncio.timeout(10):
            assert (await short).token_ids.tolist() == [9, 1]
            assert (await third).token_ids.tolist() == [9, 2], "it has the place of the second"
        assert not held.done()
        goes_on.set()
        assert (await held).token_ids.tolist() == [9, 0]
        assert client.counts.turns == 3
    assert [len(body["input_ids"]) for body in asked] == [2, 1]


async def test_of_a_stream_that_breaks_only_the_turns_without_an_answer_are_asked_again() -> None:
    async def breaks(body: dict[str, Any], stream: web.StreamResponse) -> None:
        await stream.write(event(1, reply_to(body["input_ids"][1])) + event(0, {})[:20])

    async with (
        endpoint(_streamed(breaks), good) as (url, asked),
        GenerationClient(url) as client,
    ):
        turns = [client.generate([i, 9], Sampling(4, seed=i)) for i in range(3)]
        answers = await asyncio.gather(*turns)
        assert (client.counts.turns, client.counts.retries) == (3, 1)
    assert [g.token_ids.tolist() for g in answers] == [[9, i] for i in range(3)]
    assert asked[1]["input_ids"] == [[0, 9], [2, 9]]
    assert [s["sampling_seed"] for s in asked[1]["session_params"][FIELD]] == [0, 2]


def _error(code: int) -> bytes:
    return b"data: " + orjson.dumps({"error": {"message": "no place", "code": code}}) + b"\n\n"


def _aborted(code: int) -> bytes:
    reason = {"type": "abort", "message": "no place", "status_code": code}
    return event(0, reply_to([], finish_reason=reason))


@pytest.mark.parametrize("said", [_error, _aborted])
async def test_a_refusal_within_a_stream_is_a_refusal(said: Callable[[int], bytes]) -> None:
    for code, requests in ((503, 2), (400, 1)):

        async def refuses(
            body: dict[str, Any], stream: web.StreamResponse, code: int = code
        ) -> None:
            await stream.write(said(code) + LAST)

        async with (
            endpoint(_streamed(refuses), good) as (url, asked),
            GenerationClient(url) as client,
        ):
            turns = [client.generate([i], Sampling(4)) for i in range(2)]
            outcomes = await asyncio.gather(*turns, return_exceptions=True)
        assert len(asked) == requests
        for outcome in outcomes:
            assert isinstance(outcome, Generation if requests == 2 else EngineError)
            assert requests == 2 or f"refused ({code})" in str(outcome)


@pytest.mark.parametrize("said", [b"<html>busy</html>", b"{}", b"[]", b"null\n\n", b"{}\n\n", b""])
async def test_a_stream_that_no_engine_gives_is_a_server_fault(said: bytes) -> None:
    async def nonsense(body: dict[str, Any], stream: web.StreamResponse) -> None:
        await stream.write(said)

    async with (
        endpoint(*[_streamed(nonsense)] * 6, good) as (url, asked),
        GenerationClient(url) as client,
    ):
        answers = await asyncio.gather(*[client.generate([i], Sampling(4)) for i in range(2)])
    assert [g.token_ids.tolist() for g in answers] == [[0], [1]]
    assert len(asked) == 7, "more often than a lost connection is tried again"


SPANS = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 3}]
"""two tokens of older weights, and then one of new ones, that read all again"""


async def test_experts_are_known_where_the_weights_that_chose_them_sampled() -> None:
    """Of four tokens, without the prompt's first and the answer's last; six numbers are too few."""
    said = [np.arange(6, dtype=np.int32), np.arange(8, dtype=np.int32)]

    async def experts(body: dict[str, Any]) -> web.Response:
        text = b64encode(said.pop(0).tobytes()).decode()
        return response(body, [reply_to([5, 6, 7], routed_experts=text, weight_versions=SPANS)])

    async with (
        endpoint(experts) as (url, asked),
        GenerationClient(url, with_experts=True) as client,
    ):
        found = await client.generate([1, 2, 3], Sampling(4, experts_from=1))
        assert client.counts.retries == 1
    assert [body["session_params"]["experts_from_of_each"] for body in asked] == [[1], [1]]
    assert found.experts is not None
    assert found.experts.tolist() == [[1, 2], [0, 0], [0, 0], [7, 8]]


async def test_kept_tokens_come_with_their_own_logprobs_or_the_turn_fails() -> None:
    meta = {
        "output_token_sampling_mask": [[4, 7], [9, 6, 2]],
        "output_token_sampling_logprobs": [-0.25, -0.125],
    }
    replies = [reply_to([6, 7], **meta), reply_to([6, 7])]

    async def kept(body: dict[str, Any]) -> web.Response:
        return response(body, [replies.pop(0)])

    how = Sampling(4, keep=Keep(top_k=8, top_p=0.5))
    async with endpoint(kept) as (url, asked), GenerationClient(url) as client:
        found = await client.generate([1], how)
        with pytest.raises(EngineError, match="without those that it kept"):
            await client.generate([1], how)
    (said,) = asked[0]["session_params"][FIELD]
    assert {name: said[name] for name in ("top_k", "top_p", "min_p")} == how.keep.model_dump()
    assert found.kept is not None
    assert found.kept.tolist() == [~7, 4, ~6, 2, 9]
    assert found.logprobs.tolist() == [-0.25, -0.125]


async def test_an_event_in_many_pieces_is_read_whole() -> None:
    async def in_pieces(body: dict[str, Any], stream: web.StreamResponse) -> None:
        text = b"".join(event(i, reply_to(ids)) for i, ids in enumerate(body["input_ids"])) + LAST
        for place in range(len(text)):
            await stream.write(text[place : place + 1])
            await asyncio.sleep(0)

    async with endpoint(_streamed(in_pieces)) as (url, _), GenerationClient(url) as client:
        answers = await asyncio.gather(*(client.generate([i, 9], Sampling(4)) for i in range(2)))
    assert [g.token_ids.tolist() for g in answers] == [[9, 0], [9, 1]]


async def test_answers_of_one_moment_come_in_one_event_and_no_other_waits_for_them() -> None:
    """As our plugin has a server answer; each generator has one answer and is closed."""
    moments, closed = [asyncio.Event() for _ in range(4)], list[int]()

    async def sequence(number: int) -> AsyncGenerator[dict[str, Any]]:
        try:
            await moments[number].wait()
            yield {"meta_info": {"id": f"s{number}"}}
        finally:
            closed.append(number)

    names = [f"s{number}" for number in range(4)]
    stream = together([sequence(number) for number in range(4)], names)
    first = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    moments[3].set()
    moments[1].set()
    async with asyncio.timeout(10):
        assert sorted(answer["index"] for answer in await first) == [1, 3]
        second = asyncio.create_task(anext(stream))
        moments[0].set()
        assert [answer["index"] for answer in await second] == [0]
    await stream.aclose()  # whoever asked is gone
    assert sorted(closed) == [0, 1, 2, 3]
