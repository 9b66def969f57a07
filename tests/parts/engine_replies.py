"""What an SGLang server with our plugin says to a request for turns."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import orjson
from aiohttp import web

from engines.sglang.turn_queue import LANE_HEADER

Answer: TypeAlias = Callable[..., Awaitable[web.StreamResponse]]
"""to a body, and to its request if it asks for that"""
LAST = b"data: [DONE]\n\n"


def event(index: int, reply: dict[str, Any]) -> bytes:
    """Of one sequence that is done."""
    return events([(index, reply)])


def events(replies: Sequence[tuple[int, dict[str, Any]]]) -> bytes:
    """One event, of sequences that are done in the same moment."""
    told = [reply | {"index": index} for index, reply in replies]
    return b"data: " + orjson.dumps(told) + b"\n\n"


def response(body: dict[str, Any], replies: Sequence[dict[str, Any]]) -> web.Response:
    """To a request with this body, whose sequences are all done at once."""
    if not body["stream"]:
        return web.json_response(replies)
    body_of_all = events(list(enumerate(replies)))
    return web.Response(body=body_of_all + LAST, content_type="text/event-stream")


def reply_to(ids: list[int], **meta: Any) -> dict[str, Any]:
    """To a prompt: its ids backwards."""
    tokens = ids[::-1]
    return {
        "output_ids": tokens,
        "meta_info": {
            "finish_reason": {"type": "stop"},
            "weight_version": "3",
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
        }
        | meta,
    }


async def good(body: dict[str, Any]) -> web.Response:
    return response(body, [reply_to(ids) for ids in body["input_ids"]])


@asynccontextmanager
async def endpoint(*answers: Answer) -> AsyncGenerator[tuple[str, list[dict[str, Any]]]]:
    """An endpoint that answers in this order, the last for ever; and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json() | {"lane": request.headers[LANE_HEADER]})
        answer = answers[min(len(asked), len(answers)) - 1]
        wants_request = len(inspect.signature(answer).parameters) == 2
        return await answer(asked[-1], *([request] if wants_request else []))

    app = web.Application()
    app.router.add_post("/generate", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # some answers hang on purpose
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()
