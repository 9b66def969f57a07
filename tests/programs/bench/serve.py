"""Tokens a second that clients of an endpoint get, over those of the server behind it.

Ours: 64 chat requests at once to the endpoint that `tributary serve` starts, through its router;
and to one of two models, through the gateway as well. Raw: the same requests to the SGLang server
itself. Greedy answers of a fixed length are the same whoever is asked, which is checked; prefix
caches are emptied before each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from engines.sglang.serving.endpoint import Endpoint, ServedModel, parsers_of
from engines.sglang.topology import ServedFleet
from engines.weights.update import flush
from infra.access import LOOPBACK, bearer
from infra.processes.network import free_ports
from tests.programs.bench.clock import Clock, Spent, median_ratio
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.workbench import Workbench

REQUESTS, NEW_TOKENS, REPEATS = 64, 48, 7


def measure(bench: Workbench, engines: Servers) -> list[Row]:
    del engines  # an endpoint has servers of its own
    parsers = parsers_of(bench.endless)
    fleet = ServedFleet(model=str(bench.endless))
    models = [ServedModel(name, bench.endless, parsers, fleet) for name in ("first", "second")]
    return [
        _measure(bench.folder / "serve-one", models[:1], "router", floor=0.95),
        _measure(bench.folder / "serve-two", models, "gateway and router", floor=None),
    ]


def _measure(logs: Path, models: list[ServedModel], what: str, floor: float | None) -> Row:
    with Endpoint(logs, LOOPBACK, free_ports(1)[0], "") as endpoint:
        endpoint.start_here(models)
        server = endpoint.server_urls[0]
        ours: list[Spent] = []
        raw: list[Spent] = []
        for _ in range(REPEATS + 1):
            answers: list[list[str]] = []
            for url, spent in ((endpoint.url, ours), (server, raw)):
                flush(server)
                clock = Clock()
                answers.append(asyncio.run(_ask(url, models[0].name)))
                spent.append(clock.spent())
            if answers[0] != answers[1]:
                raise RuntimeError("the endpoint and the server answered differently")
    ratio = median_ratio(raw[1:], ours[1:])
    speed = sorted(REQUESTS * NEW_TOKENS / spent.wall for spent in ours[1:])
    return Row(
        f"serve, {REQUESTS} requests at once: tokens/s over raw SGLang, through {what}",
        ratio.wall,
        "ratio",
        floor=floor,
        note=f"{speed[len(speed) // 2]:.0f} tokens/s; by CPU seconds {ratio.cpu:.2f};"
        f" median of {REPEATS} pairs",
    )


async def _ask(url: str, model: str) -> list[str]:
    timeout = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(number: int) -> str:
            body: dict[str, Any] = {
                "model": model,
                "messages": [{"role": "user", "content": f"{number}+{7 * number}"}],
                "max_tokens": NEW_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            }
            async with session.post(
                f"{url}/v1/chat/completions", json=body, headers=bearer()
            ) as response:
                reply: dict[str, Any] = await response.json()
            if response.status != 200 or reply["usage"]["completion_tokens"] != NEW_TOKENS:
                raise RuntimeError(f"{url} answered {response.status}: {str(reply)[:300]}")
            return str(reply["choices"][0]["message"]["content"])

        return list(await asyncio.gather(*map(one, range(REQUESTS))))
