"""A server that keeps a number of sequences under way, and answers with prepared tokens.

It answers nobody until that many sequences are under way, then the oldest whenever there are nearly
as many again, and everybody once all sequences that there will be have been asked for.

Usage: python -m tests.programs.bench.holding_server UNDER_WAY ALL MEAN_TOKENS. It prints its port,
and ends with its input, saying how many were under way at the most, and at the least meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import deque
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from tests.parts.engine_replies import LAST
from tests.programs.bench.open_files import raise_limit
from tests.programs.bench.simulated_server import ANSWERS, answer, event_of

SHARE = 0.88
"""of the sequences: clients ask for more when a step's groups were answered"""


@dataclass(slots=True)
class Holding:
    """Sequences that have no answer yet, oldest first."""

    wanted: int
    all_of_them: int
    held: deque[asyncio.Event] = field(default_factory=deque[asyncio.Event])
    under_way: int = 0
    seen: int = 0
    most: int = 0
    least: int = sys.maxsize
    """since the first answer, while more were to come"""

    def add(self, count: int) -> list[asyncio.Event]:
        """A request of so many sequences: what says of each that it is done."""
        mine = [asyncio.Event() for _ in range(count)]
        self.held.extend(mine)
        self.under_way += count
        self.seen += count
        self.most = max(self.most, self.under_way)
        self._let_go()
        return mine

    def _let_go(self) -> None:
        is_last = self.seen >= self.all_of_them
        has_begun = self.most >= self.wanted
        while self.held and (is_last or (has_begun and self.under_way > SHARE * self.wanted)):
            self.held.popleft().set()
            self.under_way -= 1
            if not is_last:
                self.least = min(self.least, self.under_way)


async def serve(wanted: int, all_of_them: int, mean_tokens: int) -> None:
    draw = random.Random(0)
    lengths = [round(mean_tokens * draw.uniform(0.3, 1.7)) for _ in range(ANSWERS)]
    prepared = [answer(tokens, draw) for tokens in lengths]
    holding = Holding(wanted, all_of_them)

    async def generate(request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        done = holding.add(len(asked["input_ids"]))
        if not asked["stream"]:
            await done[0].wait()
            body = b"[" + draw.choice(prepared) + b"]"
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        for index, event in enumerate(done):
            await event.wait()
            await response.write(event_of(index, draw.choice(prepared)))
        await response.write(LAST)
        return response

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=wanted).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps([holding.most, holding.least]), flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    raise_limit()
    asyncio.run(serve(*map(int, sys.argv[1:4])))
