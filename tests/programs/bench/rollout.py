"""Tokens a second of the loop's generation phase against raw requests for the same tokens.

Ours: the Producer rolls out 48 groups of 8 as a stage does (problems, prompts, seeds, turns, tools,
judging, and the journal on disk). Raw: a bare aiohttp client posts the same requests, in batches of
the same size, to the same router; the turns of a conversation one after the other, with the tools'
answers ready made. A seeded turn is the same whoever asks, which is checked, and both sides start
with empty prefix caches, so the servers do the same work for both (the raw side comes second: it
would find every prompt cached). The raw side does nothing with the answers.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.loop import fill
from engines.rollout.producer import Producer
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.roller import Roller
from engines.sglang import prefix_cache
from engines.sglang.client import GenerationClient
from engines.sglang.routed_batch import pack
from engines.types import Generation, Sampling, TokenIds
from engines.weights.update import flush
from infra.access import bearer
from tasks.rl.spec import RlSettings
from tests.parts.recipe_parts import settings_of
from tests.parts.rollout_parts import producer_of
from tests.parts.stage_parts import stage_context
from tests.programs.bench import transformers_rollout
from tests.programs.bench.clock import Clock, Spent, median_ratio
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.workbench import Workbench

MAX_BATCH = 16
CONTEXT = 512


@dataclass(slots=True)
class Turn:
    prompt: TokenIds
    sampling: Sampling
    num_new: int = 0


@dataclass(slots=True)
class Recorder:
    """Hands turns on to a client and keeps what was asked for and how long the answers were."""

    client: GenerationClient
    rollouts: dict[int, list[Turn]] = field(default_factory=dict[int, list[Turn]])
    """the turns of each: a rollout is a task of its own"""

    @property
    def num_new(self) -> int:
        return sum(turn.num_new for turns in self.rollouts.values() for turn in turns)

    async def __call__(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        turn = Turn(prompt_ids, sampling)
        self.rollouts.setdefault(id(asyncio.current_task()), []).append(turn)
        generation = await self.client.generate(prompt_ids, sampling)
        turn.num_new = len(generation.token_ids)
        return generation


def measure(bench: Workbench, engines: Servers) -> list[Row]:
    return [
        asyncio.run(measure_domain(bench, engines, 2, "reasoning", floor=0.9)),
        asyncio.run(measure_domain(bench, engines, 1, "reasoning", floor=0.9)),
        asyncio.run(measure_domain(bench, engines, 1, "agent", floor=None)),
        asyncio.run(transformers_rollout.measure(bench, engines)),
    ]


async def measure_domain(
    bench: Workbench, engines: Servers, count: int, name: str, floor: float | None
) -> Row:
    router, urls = await asyncio.to_thread(engines.serve, bench.model, count)
    gc.freeze()  # as a stage does that has leased its servers
    domain = bench.domain(name)
    notes = stage_context(bench.folder, f"rollout-{name}-{count}", {}).checkpoints
    ours: list[Spent] = []
    raw: list[Spent] = []
    repeats = bench.sizes.repeats
    tokens: list[int] = []
    turns = 0.0
    async with GenerationClient(router, max_batch=MAX_BATCH) as client, _session() as session:
        for repeat in range(repeats + 1):
            recorder = Recorder(client)
            _empty_caches(urls)
            clock = Clock()
            producer = _producer(bench, name, domain, recorder, RolloutJournal(notes), seed=repeat)
            await fill(producer)
            ours.append(clock.spent())
            _empty_caches(urls)
            clock = Clock()
            await _raw(session, f"{router}/generate", list(recorder.rollouts.values()))
            raw.append(clock.spent())
            tokens.append(recorder.num_new)
            turns = sum(map(len, recorder.rollouts.values())) / len(recorder.rollouts)
    # The first of each opens connections and warms both sides up.
    ratio = median_ratio(raw[1:], ours[1:])
    speed = sorted(n / spent.wall for n, spent in zip(tokens[1:], ours[1:], strict=True))
    kind = f", {turns:.1f} turns a rollout" if turns > 1 else ""
    return Row(
        f"rollout tokens/s over raw SGLang, {count} server{'s' * (count > 1)}{kind}",
        ratio.wall,
        "ratio",
        floor=floor,
        note=f"{speed[len(speed) // 2]:.0f} tokens/s; by CPU seconds {ratio.cpu:.2f};"
        f" median of {repeats} pairs, about {tokens[-1]} tokens each; with the journal",
    )


def _empty_caches(urls: Sequence[str]) -> None:
    for url in urls:
        flush(url)


def _producer(
    bench: Workbench,
    name: str,
    domain: LiveDomain,
    generate: Recorder,
    journal: RolloutJournal,
    seed: int,
) -> Producer:
    settings = settings_of(bench.recipe.experts[name].path, RlSettings)
    producer, _ = producer_of(
        Roller(generate=generate, chat=bench.chat, context_length=CONTEXT, seed=seed),
        [domain],
        groups_per_step=math.ceil(settings.problems_per_step * settings.oversample),
        group_size=settings.group_size,
        needs_spread=False,
        seed=seed,
        journal=journal,
    )
    return producer


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=300)
    )


async def _raw(session: aiohttp.ClientSession, url: str, rollouts: list[list[Turn]]) -> None:
    num_batches = -(-len(rollouts) // MAX_BATCH)

    async def converse(batch: list[list[Turn]]) -> None:
        for number in range(max(map(len, batch))):
            await post([turns[number] for turns in batch if len(turns) > number])

    async def post(batch: list[Turn]) -> None:
        async with session.post(
            url, data=orjson.dumps(_body(batch)), headers=_JSON | bearer()
        ) as response:
            replies: list[dict[str, Any]] = orjson.loads(await response.read())
        for turn, reply in zip(batch, replies, strict=True):
            if len(reply["output_ids"]) != turn.num_new:
                raise RuntimeError(f"raw gave {len(reply['output_ids'])}, ours {turn.num_new}")

    batches = [rollouts[first::num_batches] for first in range(num_batches)]
    await asyncio.gather(*map(converse, batches))


_JSON = {"Content-Type": "application/json"}


def _body(batch: list[Turn]) -> dict[str, Any]:
    return pack(
        [[int(t) for t in turn.prompt] for turn in batch],
        [_fields(turn.sampling) for turn in batch],
    )


def _fields(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "sampling_seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if sampling.is_last:
        prefix_cache.mark_last_turn(fields)
    return fields
