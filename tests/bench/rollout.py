"""Tokens a second of the loop's generation phase against raw requests for the same tokens.

Ours: the Producer rolls out 48 groups of 8 (problems, prompts, seeds, turns, judging). Raw: a bare
aiohttp client posts the same requests, in the same batches, to the same router. A seeded turn is
the same whoever asks, so the servers do the same work for both, which is checked; the raw side does
nothing with the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from engines.rollout.episode import Roller
from engines.rollout.producer import Producer
from engines.rollout.seams import LiveDomain
from engines.rollout.source import ProblemSource
from engines.sglang.client import GenerationClient
from engines.sglang.routed_batch import pack
from engines.types import Generation, Sampling
from tests.bench.clock import Clock, Spent, median_ratio
from tests.bench.rows import Row
from tests.bench.servers import Servers
from tests.bench.workbench import Workbench

REPEATS = 7
MAX_BATCH = 16
CONTEXT = 512


@dataclass(slots=True)
class Turn:
    prompt: Sequence[int]
    sampling: Sampling
    num_new: int = 0


@dataclass(slots=True)
class Recorder:
    """Hands turns on to a client and keeps what was asked for and how long the answers were."""

    client: GenerationClient
    turns: list[Turn] = field(default_factory=list[Turn])

    async def __call__(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        turn = Turn(prompt_ids, sampling)
        self.turns.append(turn)
        generation = await self.client.generate(prompt_ids, sampling)
        turn.num_new = len(generation.token_ids)
        return generation


def measure(bench: Workbench, engines: Servers) -> list[Row]:
    return [asyncio.run(_measure(bench, engines, count)) for count in (2, 1)]


async def _measure(bench: Workbench, engines: Servers, count: int) -> Row:
    router, _ = await asyncio.to_thread(engines.serve, bench.model, count)
    domain = bench.domain("reasoning")
    ours: list[Spent] = []
    raw: list[Spent] = []
    tokens: list[int] = []
    async with GenerationClient(router, max_batch=MAX_BATCH) as client, _session() as session:
        for repeat in range(REPEATS + 1):
            recorder = Recorder(client)
            clock = Clock()
            await _producer(bench, domain, recorder, seed=repeat).collect(1, 0, [])
            ours.append(clock.spent())
            clock = Clock()
            await _raw(session, f"{router}/generate", recorder.turns)
            raw.append(clock.spent())
            tokens.append(sum(turn.num_new for turn in recorder.turns))
    # The first of each opens connections and warms both sides up.
    ratio = median_ratio(raw[1:], ours[1:])
    speed = sorted(n / spent.wall for n, spent in zip(tokens[1:], ours[1:], strict=True))
    return Row(
        f"rollout tokens/s over raw SGLang, {count} server{'s' * (count > 1)}",
        ratio.wall,
        "ratio",
        floor=0.9,
        note=f"{speed[len(speed) // 2]:.0f} tokens/s; by CPU seconds {ratio.cpu:.2f};"
        f" median of {REPEATS} pairs, about {tokens[-1]} tokens each",
    )


def _producer(bench: Workbench, domain: LiveDomain, generate: Recorder, seed: int) -> Producer:
    settings = bench.recipe.experts["reasoning"].rl
    return Producer(
        roller=Roller(generate=generate, chat=bench.chat, context_length=CONTEXT, seed=seed),
        source=ProblemSource([domain], split="rl", seed=seed),
        groups_per_step=settings.problems_per_step,
        group_size=settings.group_size,
        oversample=settings.oversample,
        rounds=1,
        temperature=settings.algorithm.temperature,
    )


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=300)
    )


async def _raw(session: aiohttp.ClientSession, url: str, turns: list[Turn]) -> None:
    num_batches = -(-len(turns) // MAX_BATCH)

    async def post(batch: list[Turn]) -> None:
        async with session.post(url, data=orjson.dumps(_body(batch)), headers=_JSON) as response:
            replies: list[dict[str, Any]] = orjson.loads(await response.read())
        for turn, reply in zip(batch, replies, strict=True):
            if len(reply["output_ids"]) != turn.num_new:
                raise RuntimeError(f"raw gave {len(reply['output_ids'])}, ours {turn.num_new}")

    await asyncio.gather(*[post(turns[first::num_batches]) for first in range(num_batches)])


_JSON = {"Content-Type": "application/json"}


def _body(batch: list[Turn]) -> dict[str, Any]:
    return pack(
        [list(turn.prompt) for turn in batch],
        [
            {
                "max_new_tokens": turn.sampling.max_new_tokens,
                "temperature": turn.sampling.temperature,
                "sampling_seed": turn.sampling.seed,
                "stop_token_ids": list(turn.sampling.stop_token_ids),
            }
            for turn in batch
        ],
    )
