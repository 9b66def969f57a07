"""A small OpenAI-compatible server on loopback that says what it is told to, and can be down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web


def completion(said: str, finish: str = "stop") -> web.Response:
    choice = {"message": {"role": "assistant", "content": said}, "finish_reason": finish}
    return web.json_response({"choices": [choice]})


class Api:
    """Answers in turn with what it is given; the last answer again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.headers: list[Any] = []
        self.at: list[float] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def down(self) -> None:
        """Nobody listens from now on."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def up(self) -> None:
        """Listen, again where it listened before."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        port = urlsplit(self.url).port or 0
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"{site.name}/v1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.at.append(time.monotonic())
        self.asked.append(await request.json())
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return completion("too late")
        return completion(answer) if isinstance(answer, str) else answer()


@asynccontextmanager
async def serving(*answers: Any) -> AsyncGenerator[Api]:
    api = Api(*answers)
    await api.up()
    try:
        yield api
    finally:
        await api.down()
