"""The gateway over HTTP: keys, streams, limits, clients that leave, two with one key."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.agents.agent_session import AgentSession
from engines.agents.limits import GatewayLimits, SessionLimits
from engines.chat.chat import Chat
from engines.chat.chat_folder import load_chat_folder
from engines.rollout.drivers.session_host import Attempt, End, SessionHost
from engines.types import Message, Status
from tests.e2e.requests_of_strangers import of_port
from tests.parts.agent_parts import PROBLEM, Script, served, session_of
from tests.parts.chat_parts import QWEN3, QWEN_TOKENS, chat_folder

pytestmark = pytest.mark.unit

CHAT, ANTHROPIC, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
DONE = End(Status.COMPLETED)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def post(url: str, key: str, path: str, body: Any, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20) as client:
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        return await client.post(url + path, headers=bearer(key), **given, **more)


async def test_a_session_is_named_by_key_or_path() -> None:
    session = session_of(Script(lambda prompt: "hi"))
    async with served(session) as (url, key), httpx.AsyncClient(timeout=20) as client:
        first = await client.post(url + CHAT, json=HELLO, headers=bearer(key))
        second = await client.post(f"{url}/sessions/{key}{CHAT}", json=HELLO)
        third = await client.post(url + ANTHROPIC, json=HELLO, headers={"x-api-key": key})
        assert [r.status_code for r in (first, second, third)] == [200] * 3
        assert first.json()["choices"][0]["message"]["content"] == "hi"
        assert third.json()["content"] == [{"type": "text", "text": "hi"}]
        models = await client.get(f"{url}/v1/models", headers=bearer(key))
        assert [model["id"] for model in models.json()["data"]] == ["policy"]
        assert (await client.get(f"{url}/openapi.json")).json()["openapi"] == "3.1.0"
        assert (await client.get(f"{url}/health")).text == "OK"
        where = f"{url}{ANTHROPIC}/count_tokens"
        counted = await client.post(where, json=HELLO, headers=bearer(key))
        assert counted.json() == {"input_tokens": len("[]\nuser> hello\nassistant> ")}
    assert len(session.finish(DONE, {}).samples) == 3


async def test_an_answer_does_not_wait_until_its_head_is_acknowledged() -> None:
    """A client that acknowledges late does so after 40 ms; the quickest answer tells, whatever else
    the machine is about."""
    async with served(session_of(Script(lambda prompt: "hi"))) as (url, key):
        quickest = min(await asyncio.to_thread(_times, url, key))
    assert quickest < 0.035


def _times(url: str, key: str) -> list[float]:
    """Of eight requests through one connection that acknowledges late."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.connect()
    times: list[float] = []
    for _ in range(8):
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        began = time.perf_counter()
        connection.request("POST", CHAT, json.dumps(HELLO), bearer(key))
        assert connection.getresponse().read()
        times.append(time.perf_counter() - began)
    connection.close()
    return times


async def test_a_request_without_the_key_of_an_open_session_is_refused() -> None:
    async with served(session_of(Script(lambda prompt: "hi"))) as (url, key):
        wrong = await post(url, key + "x", CHAT, HELLO)
        assert wrong.status_code == 401
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        wrong = await post(url, key[:-1], ANTHROPIC, HELLO)
        assert wrong.json()["error"]["type"] == "authentication_error"
        unknown = await post(url, key, "/v1/embeddings", HELLO)
        assert unknown.status_code == 404
        assert "there are POST /v1/chat/completions" in unknown.json()["error"]["message"]


async def test_strangers_and_pages_of_other_sites_get_nothing() -> None:
    script = Script(lambda prompt: "hi")
    async with served(session_of(script)) as (url, _):
        host, _, port = url.removeprefix("http://").rpartition(":")
        sent, got = await asyncio.to_thread(of_port, host, int(port))
    assert sent >= 150
    assert got == []
    assert not script.prompts


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC, RESPONSES])
async def test_bad_input_gets_the_formats_own_error_and_costs_no_turn(path: str) -> None:
    script = Script(lambda prompt: "hi")
    limits = GatewayLimits(body=10_000)
    async with served(session_of(script), limits) as (url, key):
        for body in (b"{", b"[]", b'{"messages": [3], "input": [3]}', b"{}"):
            found = await post(url, key, path, body)
            assert found.status_code == 400, body
            assert found.json()["error"]["type"] == "invalid_request_error"
        large = await post(url, key, path, b'{"x": "' + b"x" * 20_000 + b'"}')
        assert large.status_code == 413

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1000

        async with httpx.AsyncClient(timeout=20) as client:
            chunked = await client.post(url + path, content=endless(), headers=bearer(key))
        assert chunked.status_code == 413
    assert script.started == 0


async def test_a_client_that_leaves_has_its_turn_aborted_and_forgotten() -> None:
    script = Script(lambda prompt: "hi", delay_s=30.0)
    session = session_of(script)
    async with served(session) as (url, key):
        for streamed in (False, True):
            with pytest.raises(httpx.ReadTimeout):
                async with httpx.AsyncClient(timeout=0.3) as client:
                    await client.post(
                        url + CHAT, json={**HELLO, "stream": streamed}, headers=bearer(key)
                    )
        for _ in range(100):
            if script.cancelled == 2:
                break
            await asyncio.sleep(0.02)
        assert script.cancelled == 2
        script.delay_s = 0.0
        assert (await post(url, key, CHAT, HELLO)).status_code == 200
    rollout = session.finish(DONE, {})
    assert [sample.num_trained_tokens for sample in rollout.samples] == [3]


async def test_a_stream_shows_life_while_the_policy_thinks() -> None:
    session = session_of(Script(lambda prompt: "hi", delay_s=0.3))
    async with served(session, GatewayLimits(silence_s=0.05)) as (url, key):
        said = (await post(url, key, ANTHROPIC, {**HELLO, "stream": True})).text
        assert said.startswith("event: ping")
        assert said.rstrip().endswith('data: {"type":"message_stop"}')
        said = (await post(url, key, CHAT, {**HELLO, "stream": True})).text
        assert said.startswith(": waiting")
        assert said.endswith("data: [DONE]\n\n")


async def test_an_error_in_a_stream_that_has_begun_is_an_event() -> None:
    session = session_of(Script(lambda prompt: "?broken", delay_s=0.2))
    async with served(session, GatewayLimits(silence_s=0.05)) as (url, key):
        said = await post(url, key, ANTHROPIC, {**HELLO, "stream": True})
        assert "event: error" in said.text
        assert "session is over" in said.text
        again = await post(url, key, ANTHROPIC, {**HELLO, "stream": True})
        assert again.status_code == 400


def history(said: list[Message]) -> dict[str, Any]:
    return {"messages": [{"role": m.role, "content": m.content} for m in said]}


async def test_two_clients_with_one_key_corrupt_nothing() -> None:
    """Each goes on with its own conversation, at the same time; one of them also repeats itself."""
    numbers = iter(range(10_000))
    script = Script(lambda prompt: f"n{next(numbers)}", delay_s=0.002)
    session = session_of(script, SessionLimits(turn_tokens=50))

    async def converse(url: str, key: str, name: str, turns: int) -> None:
        said = [Message("user", "the same beginning")]
        for turn in range(turns):
            found = await post(url, key, CHAT, history(said))
            assert found.status_code == 200, found.text
            answer = found.json()["choices"][0]["message"]["content"]
            next_one = Message("user", f"{name if turn else 'x'} {turn}")
            said += [Message("assistant", answer), next_one]

    async with served(session) as (url, key):
        await asyncio.gather(*(converse(url, key, name, 6) for name in "aabb"))
    check_tokens(session, script)


def check_tokens(session: AgentSession, script: Script) -> None:
    """Every sampled token is trained once, and none that was not sampled."""
    found: list[tuple[int, int]] = []
    for sample in session.finish(DONE, {}).samples:
        trained = sample.loss_mask
        serials = (-sample.logprobs[trained]).astype(int).tolist()
        found += zip(serials, sample.tokens[trained].tolist(), strict=True)
    assert sorted(found) == sorted(script.sampled.items())


@pytest.mark.parametrize("path", [CHAT, ANTHROPIC, RESPONSES])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_with_a_large_number_is_delivered(path: str, streamed: bool) -> None:
    session = session_of(Script(lambda prompt: f'!mul {{"a": {10**30}, "b": 6.022e23}}'))
    body = {"input": "hello"} if path == RESPONSES else HELLO
    async with served(session) as (url, key):
        said = await post(url, key, path, {**body, "stream": streamed})
    assert said.status_code == 200
    assert str(10**30) in said.text.replace("\\", "")
    assert len(session.finish(DONE, {}).samples) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_fault_of_our_own_is_an_error_of_the_format(streamed: bool) -> None:
    session = session_of(Script(lambda prompt: "!mul {no json", delay_s=0.1))
    async with served(session, GatewayLimits(silence_s=0.02)) as (url, key):
        said = await post(url, key, ANTHROPIC, {**HELLO, "stream": streamed})
    assert said.status_code == (200 if streamed else 500)
    assert '"type":"error"' in said.text
    assert "the gateway cannot answer this: JSONDecodeError" in said.text
    assert not session.tree.turns


LONG = {
    "one long message": [{"role": "user", "content": "ab cd\n" * 120_000}],
    "many messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    * 2_000
    + [{"role": "user", "content": "x"}],
    "a run of marks": [{"role": "user", "content": "a" + "\u0301\u0316" * 60_000}],
}


@pytest.mark.parametrize("what", LONG)
async def test_a_long_request_does_not_keep_others_waiting(what: str, tmp_path: Path) -> None:
    chat = Chat(load_chat_folder(chat_folder(tmp_path, QWEN3, QWEN_TOKENS, "<|im_end|>")))
    asked = Attempt(PROBLEM, "agents", chat.prompt_ids(PROBLEM), "g", 0, "g", 1.0, 999, 0, 100_000)
    host = SessionHost(Script(lambda prompt: "hi").generate, chat, asked)
    body = json.dumps({"messages": LONG[what]}).encode()
    async with served(AgentSession(host, PROBLEM, SessionLimits())) as (url, key):
        blocked: list[float] = []
        watch = asyncio.create_task(_longest_work(blocked))
        counted = await post(url, key, f"{ANTHROPIC}/count_tokens", body)
        asked_for = await post(url, key, CHAT, body)
        watch.cancel()
    assert counted.status_code == 200, counted.text
    assert counted.json()["input_tokens"] > 10_000
    assert asked_for.status_code in (200, 400)
    assert max(blocked) < 1.0, "tokens are found beside the event loop"


async def test_a_long_call_that_comes_back_is_compared_beside_the_event_loop() -> None:
    used = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1] * 2_000_000}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "y"}
    asked = [("user", "x"), ("assistant", [used]), ("user", [result])]
    body = json.dumps({"messages": [{"role": role, "content": said} for role, said in asked]})
    async with served(session_of(Script(lambda prompt: "hi"))) as (url, key):
        blocked: list[float] = []
        watch = asyncio.create_task(_longest_work(blocked))
        counted = await post(url, key, f"{ANTHROPIC}/count_tokens", body.encode())
        watch.cancel()
    assert counted.json()["input_tokens"] > 4_000_000
    assert max(blocked) < 0.2


async def _longest_work(found: list[float]) -> None:
    """Processor time of the event loop's thread between two moments at which others have a turn."""
    while True:
        began = time.thread_time()
        await asyncio.sleep(0.01)
        found.append(time.thread_time() - began)


async def test_a_request_that_only_begins_counts_among_those_at_the_same_time() -> None:
    """Each may bring 8 MiB into the stage's memory before it is whole."""
    session = session_of(Script(lambda prompt: "hi"), limits=SessionLimits(parallel=2))
    async with served(session) as (url, key):
        host, port = url.removeprefix("http://").split(":")
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        sent = head.encode() + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        for _, writer in opened:
            writer.write(sent)
        first = [asyncio.create_task(reader.readline()) for reader, _ in opened]
        done, waiting = await asyncio.wait(first, timeout=10, return_when="FIRST_COMPLETED")
        assert [b"429" in each.result() for each in done] == [True]
        assert len(waiting) == 2
        for _, writer in opened:
            writer.close()
        await asyncio.wait(waiting)
        assert (await post(url, key, CHAT, HELLO)).status_code == 200


async def test_tools_that_requests_name_are_not_kept() -> None:
    session = session_of(Script(lambda prompt: "hi"))
    async with served(session) as (url, key):
        tracemalloc.start()
        try:
            for number in range(8):
                schema = {"type": "object", "properties": {f"{number}" * 2_000_000: {}}}
                body = HELLO | {"tools": [{"name": "t", "input_schema": schema}]}
                path = f"{ANTHROPIC}/count_tokens"
                assert (await post(url, key, path, body)).status_code == 200
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 6_000_000


async def test_counting_tokens_has_the_limits_of_a_session() -> None:
    limits = SessionLimits(counts=2)
    session = session_of(Script(lambda prompt: "hi"), limits=limits)
    where = f"{ANTHROPIC}/count_tokens"
    async with served(session) as (url, key):
        told = [await post(url, key, where, HELLO) for _ in range(3)]
        assert [answer.status_code for answer in told] == [200, 200, 429]
        assert "2 counts of tokens" in told[2].text
        session.over.set()
        assert (await post(url, key, where, HELLO)).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x"}] * 10_001},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 10_001}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "t"}] * 10_001},
        {"messages": [{"role": "user", "content": "x"}], "other": [[]] * 200_001},
    ],
    ids=["messages", "parts", "tools", "brackets"],
)
@pytest.mark.parametrize("path", [CHAT, ANTHROPIC, f"{ANTHROPIC}/count_tokens"])
async def test_a_request_of_too_many_parts_is_refused(path: str, body: dict[str, Any]) -> None:
    session = session_of(Script(lambda prompt: "hi"))
    async with served(session) as (url, key):
        answer = await post(url, key, path, body)
    assert answer.status_code == 413
    assert "10000 messages" in answer.text or "200000 opening brackets" in answer.text


async def test_a_harness_that_breaks_at_the_end_of_the_context_is_truncated() -> None:
    """As at every other limit, whatever its exit code; unless it went on with less."""
    broken, long = End(Status.FAILED, "harness: exit code 1"), {"role": "user", "content": "x" * 99}
    for goes_on, status in ((False, Status.TRUNCATED), (True, Status.FAILED)):
        session = session_of(Script(lambda prompt: "hi"), context_length=100)
        async with served(session) as (url, key):
            assert (await post(url, key, CHAT, HELLO)).status_code == 200
            refused = await post(url, key, CHAT, {"messages": [long]})
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "context_length_exceeded"
            if goes_on:
                assert (await post(url, key, CHAT, HELLO)).status_code == 200
        assert session.finish(broken, {}).status is status
