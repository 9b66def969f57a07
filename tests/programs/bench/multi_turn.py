"""Rollouts of many turns over two servers: sticky lanes against requests dealt out in turn.

Groups share a long prompt; between two turns of a rollout a tool takes its time and adds its
answer. The servers have cache for all rollouts once, not twice. Both sides take the same turns with
the same seeds, begin with empty caches, and must write the same tokens; each has a router of its
own before the same servers.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engines.chat import Chat
from engines.devices.child_processes import ChildProcesses
from engines.devices.host_agent import HostAgent
from engines.rollout.drivers.session_host import End, SessionHost
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from engines.sglang.servers.router import Router
from engines.sglang.servers.server import Place
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec, Routing
from engines.types import Message, Problem, Rollout, Status, Tokens
from engines.weights.update import flush
from tests.parts.tiny import tiny_model, without_end
from tests.programs.bench.clock import Clock, Spent, median_ratio
from tests.programs.bench.driver import free_domain
from tests.programs.bench.rows import Row

GROUPS, GROUP_SIZE, TURNS = 8, 4, 6
PROMPT_TOKENS, NEW_TOKENS, TOOL_TOKENS = 400, 8, 48
CACHE_TOKENS = 8192
"""of each server; the rollouts have 8 x 400 + 32 x 6 x 56 = 14,000 different tokens"""
PAIRS = 5
CONTEXT = 1024


class ManyTurns:
    """A tool answers after each turn but the last."""

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        session = sessions.open(sessions.prompt_ids)
        for turn in range(TURNS):
            await sessions.turn(session, max_new_tokens=NEW_TOKENS, is_last=turn == TURNS - 1)
            await asyncio.sleep(_tool_seconds(session.tokens))
            session.extend([65 + (turn + index) % 26 for index in range(TOOL_TOKENS)])
        said = [Message("assistant", "")] * TURNS
        return sessions.finish(End(Status.COMPLETED), said)


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    url: str
    routing: Routing


@dataclass(frozen=True, slots=True)
class Ran:
    """One side's rollouts of one seed."""

    spent: Spent
    new_tokens: int
    hit_rate: float
    """of prompt tokens, those that a server had cached"""
    wrote: Sequence[Sequence[int]]


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as name:
        folder = Path(name)
        model = tiny_model(folder / "model", hidden_size=256, max_position_embeddings=CONTEXT)
        model = without_end(model, folder / "endless")
        agent = HostAgent(folder / "logs", 0)
        slots = ServerSlots(agent)
        try:
            names = slots.grow(2)
            spec = FleetSpec(max_total_tokens=CACHE_TOKENS)
            ours = slots.prepare(dict.fromkeys(names, Place(tp=1)), spec, model, 0)
            urls = [slots[name].url for name in names]
            programs = agent.children()
            sides = [
                Side("sticky", ours.url, "sticky"),
                Side("round robin", _round_robin(programs, urls), "spread"),
            ]
            return _rows(asyncio.run(_measure(model, sides, urls)))
        finally:
            slots.close()


def _round_robin(programs: ChildProcesses, urls: Sequence[str]) -> str:
    """A router that deals requests out in turn; its URL."""
    router = Router(programs, "round-robin", flags={"--policy": "round_robin"})
    router.wait_ready()
    router.set_servers(urls)
    return router.url


async def _measure(model: Path, sides: Sequence[Side], urls: Sequence[str]) -> list[list[Ran]]:
    """By side, its runs; the first, which opens connections and warms up, is left out."""
    chat = Chat.load(model)
    chat.stop_token_ids = ()
    ran: list[list[Ran]] = [[] for _ in sides]
    for seed in range(PAIRS + 1):
        for side, runs in zip(sides, ran, strict=True):
            for url in urls:
                await asyncio.to_thread(flush, url)
            runs.append(await _run(chat, side, seed))
        if len({str(runs[-1].wrote) for runs in ran}) > 1:
            raise RuntimeError(f"the sides wrote different tokens with seed {seed}")
    return [runs[1:] for runs in ran]


async def _run(chat: Chat, side: Side, seed: int) -> Ran:
    domain = replace(free_domain(TURNS * NEW_TOKENS), driver=ManyTurns())
    async with GenerationClient(side.url, routing=side.routing) as client:
        roller = Roller(generate=client.generate, chat=chat, context_length=CONTEXT, seed=seed)
        clock = Clock()
        groups = await asyncio.gather(
            *[
                roller.roll_group(
                    domain, _problem(number), GROUP_SIZE, temperature=1.0,
                    group_id=f"{seed}/{number}", seed_name=f"{seed}/{number}",
                )
                for number in range(GROUPS)
            ]
        )  # fmt: skip
        spent, counts = clock.spent(), client.counts
    wrote = [r.samples[0].tokens.tolist() for rollouts in groups for r in rollouts]
    return Ran(spent, counts.new_tokens, counts.cached_tokens / counts.prompt_tokens, wrote)


def _tool_seconds(tokens: Tokens) -> float:
    """From 0.02 to 0.2, by what was said: rollouts do not go on in step."""
    return 0.02 + int(tokens[-NEW_TOKENS:].sum()) % 19 / 100


def _problem(number: int) -> Problem:
    """Whose text, of one token a letter, differs from the others' from its beginning on."""
    return Problem(f"{number}", "bench", (Message("user", f"{number}" * PROMPT_TOKENS),))


def _rows(ran: Sequence[Sequence[Ran]]) -> list[Row]:
    sticky, in_turn = ran
    hits = [statistics.median(r.hit_rate for r in runs) for runs in ran]
    speeds = [statistics.median(r.new_tokens / r.spent.wall for r in runs) for runs in ran]
    work = (
        f"{GROUPS} groups of {GROUP_SIZE}, {TURNS} turns of {NEW_TOKENS} tokens, prompts of"
        f" {PROMPT_TOKENS}, tools of {TOOL_TOKENS}; two servers with {CACHE_TOKENS} cached tokens"
        " each"
    )
    ratio = median_ratio([r.spent for r in in_turn], [r.spent for r in sticky])
    return [
        Row("multi-turn: prefix-cache hit rate, sticky", hits[0], "ratio", note=work),
        Row("multi-turn: prefix-cache hit rate, round robin", hits[1], "ratio", note=work),
        Row("multi-turn: tokens/s, sticky over round robin", ratio.wall, "ratio", 1.3,
            note=f"median of {PAIRS} pairs, the same tokens; {speeds[0]:.0f} and {speeds[1]:.0f}"
            f" tokens/s; by CPU seconds {ratio.cpu:.2f}"),
    ]  # fmt: skip
