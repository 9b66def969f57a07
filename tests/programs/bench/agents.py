"""The agents' gateway: what it adds to a turn, what a token costs it, and how tokenizing grows with
a session.

The policy is scripted and answers after a time of its own; gateway, sessions, wire format and HTTP
are the real ones, in a process of their own. What a turn took beside that time is measured by the
clients, which all begin at the same moment: queueing on the gateway's one core is a part of it, and
so is theirs on their own. What they alone need, of a server that only waits, stands beside it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from engines.agents.incremental_prompt import appended_ids
from engines.agents.trajectory import Trajectory
from engines.chat import Chat
from engines.rollout.drivers.session import TokenSession
from engines.rollout.protocols import Generate
from engines.types import Generation, Message, Problem, Sampling, TokenIds
from engines.weight_versions import WeightVersions
from tests.parts.chat_parts import QWEN3, QWEN_TOKENS, chat_folder
from tests.programs.bench.rows import Row

TURNS = 500
TIMES = 3
SESSIONS, REQUESTS = 64, 12
OUTPUT = "line of what a tool printed\n" * 20


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as folder:
        chat = Chat.load(chat_folder(Path(folder), QWEN3, QWEN_TOKENS, "<|im_end|>"))
    whole, pieces = zip(*[_tokenizing(chat) for _ in range(TIMES)], strict=True)
    p50, p99, cpu = _gateway()
    alone = _added("waiting_server")[0]
    clients = [f"the clients alone: {seconds * 1e3:.1f} ms" for seconds in _percentiles(alone)]
    return [
        Row(
            "tokenizing a session of 500 turns / one pass", min(pieces) / min(whole), "", 1.5, True,
            f"{min(pieces):.2f} s against {min(whole):.2f} s, the best of {TIMES} each",
        ),
        Row("gateway, 64 sessions: added to a turn, p50", p50 * 1e3, "ms", 5.0, True, clients[0]),
        Row("gateway, 64 sessions: added to a turn, p99", p99 * 1e3, "ms", 20.0, True, clients[1]),
        Row(
            "gateway, 64 sessions: processor time a token", cpu * 1e6, "us", 5.0, True,
            "prompts' growth, JSON and HTTP together, of tokens that were sampled",
        ),
    ]  # fmt: skip


def _tokenizing(chat: Chat) -> tuple[float, float]:
    """Seconds for the whole conversation at once, and turn by turn as a session does it."""
    problem = Problem("bench", "bench", (Message("user", "repair the program"),))
    said = Message("assistant", "I look at the next file and then decide. " * 6)
    found = Message("tool", OUTPUT)
    every = [*problem.messages, *[said, found] * TURNS]
    began = time.process_time()
    chat.prompt_ids(replace(problem, messages=tuple(every)))
    whole = time.process_time() - began
    return whole, asyncio.run(_turn_by_turn(chat, problem, said, found))


async def _turn_by_turn(chat: Chat, problem: Problem, said: Message, found: Message) -> float:
    """Seconds for what is tokenized; what the policy says has its tokens already."""
    tree = Trajectory()
    parent, context = tree.root(b""), problem.messages
    line = TokenSession(_says(chat.turn_ids(problem, said)), chat.prompt_ids(problem))
    seconds = 0.0
    for turn in range(TURNS):
        began = time.process_time()
        ids = appended_ids(chat, problem, parent, context)
        seconds += time.process_time() - began
        if turn:
            line.extend(ids)
        begin = len(line.tokens)
        await line.turn(Sampling(max_new_tokens=10_000))
        parent = tree.add(parent, context, tree.meanings(context), said, line, begin, begin)
        context = (found,)
    return seconds


def _says(ids: Sequence[int]) -> Generate:
    import numpy as np

    made = Generation(
        np.array(ids, np.int32), np.zeros(len(ids), np.float32),
        WeightVersions.of_runs([(0, len(ids))]), "stop",
    )  # fmt: skip

    async def generate(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        return made

    return generate


def _gateway() -> tuple[float, float, float]:
    """Seconds added to a turn at the 50th and 99th percentile, and seconds of processor a token."""
    added, told = _added("agent_gateway")
    used = json.loads(told)
    return *_percentiles(added), used["cpu_seconds"] / used["tokens"]


def _percentiles(added: Sequence[float]) -> tuple[float, float]:
    """The 50th and the 99th."""
    ordered = sorted(added)
    return ordered[len(added) // 2], ordered[int(len(added) * 0.99)]


def _added(server: str) -> tuple[list[float], str]:
    """Seconds added to each turn by a server, and what it printed at its end."""
    command = [sys.executable, "-m", f"tests.programs.bench.{server}", str(SESSIONS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        served = json.loads(process.stdout.readline())
        added = asyncio.run(_clients(served["url"], served["keys"]))
        told, _ = process.communicate("end\n", timeout=60)
    return added, told


async def _clients(url: str, keys: Sequence[str]) -> list[float]:
    gc.collect()
    gc.freeze()  # a pause of this process would count as the gateway's
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        found = await asyncio.gather(*(_client(client, url, key) for key in keys))
    return [added for each in found for added in each]


async def _client(client: aiohttp.ClientSession, url: str, key: str) -> list[float]:
    """What each turn took beside the time that the policy said it took."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "repair the program"}]
    added: list[float] = []
    for _ in range(REQUESTS):
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        began = time.perf_counter()
        async with client.post(f"{url}/v1/chat/completions", data=body, headers=headers) as reply:
            text = await reply.read()
        took = time.perf_counter() - began
        said = json.loads(text)["choices"][0]["message"]
        added.append(took - float(said["content"].partition("\n")[0]))
        messages += [said, {"role": "user", "content": OUTPUT}]
    return added
