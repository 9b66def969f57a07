"""Ten thousand rollouts under way in one process: what a token costs it, and what memory it takes.

The loop samples beside a trainer that does nothing, so that `IN_FLIGHT` rollouts are under way
until the last have started. Loop, producer, roller, sessions, chat, client and journal are the real
ones; the server, which is a process of its own, and the judge cost next to nothing.

`python -m tests.programs.bench.in_flight BATCH` is the process that is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from engines.algorithms.spec import Algorithm
from engines.chat import Chat
from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.loop import Loop
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.records.take_log import TakeLog
from engines.rollout.roller import Roller
from engines.sglang.client import GenerationClient
from engines.step_inputs import StepInputs, TrainedStep, Values
from engines.weights.transport import PublishReport
from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from tests.parts.rollout_parts import producer_of
from tests.parts.tiny import tiny_model
from tests.programs.bench.driver import free_domain
from tests.programs.bench.open_files import raise_limit
from tests.programs.bench.rows import Row

IN_FLIGHT, GROUP_SIZE = 10_000, 8
STALENESS, STEPS = 9, 20
"""ten steps' groups are under way or wait, and only one step's wait"""
GROUPS_PER_STEP = IN_FLIGHT // GROUP_SIZE // (STALENESS + 1)
MEAN_TOKENS = 1000
"""of an answer; they have 300 to 1,700"""
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Worker:
    """What one process did."""

    tokens: int
    requests: int
    cpu_s: float
    wall_s: float
    before_mb: float
    peak_mb: float
    most: int
    """sequences under way at the server"""
    least: int
    """the same, from the first answer until the last were asked for"""

    def note(self) -> str:
        return (
            f"{self.least} to {self.most} under way, {self.tokens / 1e6:.0f}M tokens in"
            f" {self.requests} requests, {self.wall_s:.0f} s by the clock beside the server"
        )


def measure() -> list[Row]:
    together, apart = _worker(16), _worker(1)
    mb = f"{together.before_mb:.0f} MB before the first rollout"
    return [
        Row(
            f"CPU of a token, {IN_FLIGHT} rollouts under way",
            1e6 * together.cpu_s / together.tokens, "us/token", 1.5, True, together.note(),
        ),
        Row(
            "the same, a request for each turn",
            1e6 * apart.cpu_s / apart.tokens, "us/token", note=apart.note(),
        ),
        Row("memory of it, at the most", together.peak_mb, "MB", note=mb),
        Row("memory of it, a request for each turn", apart.peak_mb, "MB"),
    ]  # fmt: skip


def _worker(batch: int) -> Worker:
    """In a process of its own: the peak of memory is a process's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.bench.in_flight", str(batch)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the worker failed:\n{done.stderr[-3000:]}")
    return Worker(**json.loads(done.stdout.splitlines()[-1]))


class _NoTrainer:
    """Leaves the policy as it is, so nothing is published and nothing ages."""

    version = 0

    async def rl_step(self, inputs: StepInputs) -> TrainedStep:
        return TrainedStep()

    async def agreement(self, inputs: StepInputs) -> dict[str, float]:
        return {}

    async def token_rewards(self, inputs: StepInputs) -> Values:
        return np.zeros(0, np.float32)

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncGenerator[None]:
        yield

    async def publish_next(self) -> PublishReport:
        raise AssertionError("no update asks for it")


async def _work(batch: int, folder: Path) -> Worker:
    chat = Chat.load(tiny_model(folder / "model"))
    everything = GROUPS_PER_STEP * GROUP_SIZE * STEPS
    command = [sys.executable, "-m", "tests.programs.bench.holding_server"]
    command += [str(IN_FLIGHT), str(everything), str(MEAN_TOKENS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            async with GenerationClient(url, max_batch=batch, most_turns=IN_FLIGHT) as client:
                before, wall, cpu = _peak_mb(), time.monotonic(), time.process_time()
                await _sample(client, chat, folder)
                wall, cpu = time.monotonic() - wall, time.process_time() - cpu
                counts = client.counts
        finally:
            said, _ = server.communicate(timeout=30)
    most, least = json.loads(said.splitlines()[-1])
    return Worker(counts.new_tokens, counts.requests, cpu, wall, before, _peak_mb(), most, least)


async def _sample(client: GenerationClient, chat: Chat, folder: Path) -> None:
    store = Store((folder / "store").as_uri())
    notes = StageCheckpoints(store, "rl", "0" * 64, 1, folder / "scratch")
    policy = _NoTrainer()
    producer, buffer = producer_of(
        Roller(generate=client.generate, chat=chat, context_length=4096, seed=0),
        [free_domain(2 * MEAN_TOKENS)],
        groups_per_step=GROUPS_PER_STEP, group_size=GROUP_SIZE, needs_spread=False,
        max_staleness=STALENESS, policy=policy, journal=RolloutJournal(notes),
    )  # fmt: skip
    consumer = Consumer(
        trainer=policy, policy=policy, algorithm=Algorithm(), groups_per_step=GROUPS_PER_STEP
    )
    sampler = BackgroundSampler(producer, buffer, policy, STEPS)
    loop = Loop(producer, buffer, TakeLog(notes), consumer, policy, sampler)

    async def after_step(result: StepResult) -> bool:
        return False

    await loop.run(first=1, last=STEPS, after_step=after_step)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(batch: int) -> None:
    raise_limit()
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as folder:
        print(json.dumps(asdict(asyncio.run(_work(batch, Path(folder))))))


if __name__ == "__main__":
    main(int(sys.argv[1]))
