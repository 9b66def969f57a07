"""What a token costs the driver: one process that samples, parses, judges and journals, fed by a
simulated server; and what writing a rollout down costs for journal, buffer and ranks together.

The server, the judge and the model's folder are stand-ins that cost next to nothing; client, chat,
sessions, producer and journal are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engines.chat import Chat
from engines.rollout.drivers.driver import Conversation, LiveDomain
from engines.rollout.loop import fill
from engines.rollout.producer import Sampled
from engines.rollout.records.journals import Finished, RolloutJournal
from engines.rollout.records.packing import pack_groups
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from engines.types import Demonstration, Environment, Message, Problem, Sample, Split, Transcript
from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from tests.parts.rollout_parts import producer_of
from tests.parts.tiny import tiny_model
from tests.programs.bench.rows import Row

TOKENS = 1024
"""of an answer"""
GROUPS, GROUP_SIZE = 64, 8
TIMES = 3


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as folder:
        chat = Chat.load(tiny_model(Path(folder) / "model"))
        with _server() as url:
            runs = [
                asyncio.run(_step(chat, url, Path(folder) / f"store-{n}")) for n in range(TIMES)
            ]
    walls = sorted(tokens / wall for _, tokens, wall, _ in runs)
    rates = sorted(tokens / cpu for _, tokens, _, cpu in runs)
    encoding = min(_encoding_seconds(sampled) / tokens for sampled, tokens, _, _ in runs)
    return [
        Row(
            "tokens/s through one driver, with journal", walls[TIMES // 2], "tokens/s", 600_000,
            note=f"by the clock, beside the simulated server, median of {_each(walls)}; by"
            f" processor time {_each(rates)}; {GROUPS * GROUP_SIZE} answers of {TOKENS} tokens",
        ),
        Row(
            "encoding a rollout", encoding * 1e6, "us/token", 0.3, True,
            "for the journal, the buffer and the ranks, together",
        ),
    ]  # fmt: skip


def _each(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.0f}" for rate in rates)


async def _step(chat: Chat, url: str, store: Path) -> tuple[Sampled, int, float, float]:
    """One step's rollouts, their tokens, and the seconds of wall and processor it took."""
    checkpoints = StageCheckpoints(Store(store.as_uri()), "rl", "0" * 64, 1, store / "scratch")
    async with GenerationClient(url) as client:
        producer, _ = producer_of(
            Roller(generate=client.generate, chat=chat, context_length=4096, seed=0),
            [free_domain(TOKENS)],
            groups_per_step=GROUPS,
            group_size=GROUP_SIZE,
            needs_spread=False,
            journal=RolloutJournal(checkpoints),
        )
        wall, cpu = time.perf_counter(), time.process_time()
        sampled = await fill(producer)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return sampled, client.counts.new_tokens, wall, cpu


def _encoding_seconds(sampled: Sampled) -> float:
    """To write the step down for the journal and the buffer, and to serialize it for the ranks."""
    samples = [s for group in sampled.groups for s in group.samples]
    began = time.process_time()
    asyncio.run(_journal(samples))
    pack_groups(sampled.kept)
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(samples, protocol=5, buffer_callback=buffers.append)
    b"".join([head, *(buffer.raw() for buffer in buffers)])
    return time.process_time() - began


async def _journal(samples: Sequence[Sample]) -> None:
    journal = RolloutJournal(_Discarded())
    for sample in samples:
        journal.keep(1, Finished((sample,), (Message("assistant", "x"),), 0))
    await journal.flush()


class _Discarded:
    """Notes that nobody needs."""

    def note(self, kind: str, number: int, data: bytes) -> None: ...

    def notes(self, kind: str, first: int, last: int | None = None) -> list[bytes]:
        return []


@dataclass(frozen=True, slots=True)
class _Judgement:
    reward: float = 1.0
    breakdown: Mapping[str, float] = field(default_factory=lambda: {"outcome": 1.0})
    reason: str = ""
    turns: tuple[float, ...] = ()
    weights: Mapping[str, float] = field(default_factory=lambda: {"outcome": 1.0})
    failed: bool = False


class _Judge:
    async def judge(self, transcript: Transcript) -> _Judgement:
        return _Judgement()


class _Problems:
    """Problem n says its number."""

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
        return [
            Problem(f"bench/{n}", "bench", (Message("user", f"problem {n:>48}"),))
            for n in range(start, start + count)
        ]

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        return []

    def environment(self) -> Environment | None:
        return None


def free_domain(max_new_tokens: int) -> LiveDomain:
    """Whose problems and judge cost next to nothing."""
    return LiveDomain("bench", _Problems(), _Judge(), Conversation(None), max_new_tokens)


@contextlib.contextmanager
def _server() -> Generator[str]:
    command = [sys.executable, "-m", "tests.programs.bench.simulated_server", str(TOKENS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.communicate(timeout=10)
