"""Rollouts: sampled, batched for the trainer, written into data sets, and read by people."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import numpy as np

from engines.algorithms.spec import Algorithm
from engines.batching import plan_micro_batches
from engines.rollout.records.dataset import DistilledRow, dataset_rows, write_dataset
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.records.sifting import duplicates
from engines.rollout.roller import Roller
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.sglang.turn_queue import AskedTurn, Batch, TurnQueue
from engines.step_inputs import StepInputs
from engines.types import Generation, Message, Problem, Sampling, TokenIds
from tests.parts.loop_parts import Notes
from tests.parts.rollout_parts import CharChat, Counting, domain
from tests.parts.sample_parts import generation_of
from tests.programs.growth.made_up import sample_of
from tests.programs.growth.meter import Figure, Meter
from tests.programs.growth.registry import HISTORY, WORK, grows


@grows("rollouts under way in a sweep", "problems", (500, 2000, 8000), calls=HISTORY,
       memory=HISTORY)  # fmt: skip
def sweep(size: int, meter: Meter) -> None:
    """Calls: turns at the engine at once. Memory: until the first of them is answered."""
    most = under_way = 0
    may_answer = asyncio.Event()

    async def generate(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await may_answer.wait()
        under_way -= 1
        return generation_of([5] * 4, [-0.1] * 4, [0] * 4, "length")

    async def begin() -> asyncio.Task[object]:
        kept = await KeptRollouts.open(RolloutJournal(Notes()), 0)
        roller = Roller(generate=generate, chat=CharChat(), context_length=200, seed=0)
        problems = Counting("d").problems("distill", size, 1)
        sampling = sample_rollouts(
            roller, domain("d", lambda _: 1.0), problems, samples=4, temperature=1.0, kept=kept
        )
        task: asyncio.Task[object] = asyncio.create_task(sampling)
        before = -1
        while under_way != before:
            before = under_way
            await asyncio.sleep(0.5)
        return task

    async def main() -> None:
        with meter.counting():
            task = await begin()
        may_answer.set()
        await task

    asyncio.run(main())
    meter.count(Figure.CALLS, most)


@grows("turns that wait for a place", "turns", (4000, 16_000, 64_000), cpu_s=WORK)
def turn_queue(size: int, meter: Meter) -> None:
    sampling = Sampling(max_new_tokens=8)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        turns = TurnQueue(16, "spread", 1024)
        for _ in range(size):
            turns.add(AskedTurn((1,), sampling, loop.create_future()))
        with meter.counting():
            under_way: list[Batch] = turns.take()
            while under_way:
                batch = under_way.pop()
                for turn in batch.turns:
                    turn.generation.cancel()
                turns.give_back(len(batch.turns))
                under_way += turns.take()

    asyncio.run(main())


@grows("micro-batches of a step", "samples", (1024, 4096, 16_384), cpu_s=WORK + 0.1)
def micro_batches(size: int, meter: Meter) -> None:
    """Sorting is in it, hence the logarithm."""
    made = np.random.default_rng(0)
    lengths = np.minimum(made.lognormal(8.5, 0.8, size), 32_768).astype(int).tolist()
    costs = [float(n) + n * n / 1e4 for n in lengths]
    with meter.counting():
        for _ in range(5):
            plan_micro_batches(lengths, 32_768, 64, costs)


@grows("a step's inputs, on their way", "samples", (64, 256, 1024), cpu_s=WORK, bytes=WORK)
def step_inputs(size: int, meter: Meter) -> None:
    samples = [sample_of(n // 8, n % 8, 0, 2048) for n in range(size)]
    with meter.counting():
        sent = pickle.dumps(StepInputs(samples, Algorithm()), protocol=5)
        pickle.loads(sent)
    meter.count(Figure.BYTES, len(sent))


@grows("a step's batch on a rank", "samples", (64, 256, 1024), cpu_s=WORK, memory=WORK)
def rl_batch(size: int, meter: Meter) -> None:
    import torch

    from engines.megatron.rl.rl_batch import RlBatch

    torch.set_num_threads(1)
    algorithm = Algorithm()
    samples = [sample_of(n // 8, n % 8, 0, 2048) for n in range(size)]
    few = RlBatch.of(samples[:16], algorithm)
    few.targets(algorithm, few.engine_logprobs.copy(), None)
    with meter.counting():
        batch = RlBatch.of(samples, algorithm)
        batch.targets(algorithm, batch.engine_logprobs.copy(), None)


def _distilled(number: int) -> DistilledRow:
    sample = sample_of(number, 0, 0, 512)
    problem = Problem(f"p{number}", "d", (Message("user", "ask"),))
    turns = (Message("assistant", "answer"),)
    return DistilledRow(
        sample.tokens.tolist(), [1] * 512, problem, turns, "d", "9" * 64, 0, 3, {"outcome": 1.0}
    )


@grows("distill: rows into the data set", "samples", (1000, 4000, 16_000), cpu_s=WORK,
       memory=HISTORY)  # fmt: skip
def dataset_written(size: int, meter: Meter) -> None:
    _write_dataset(meter.folder / "warm.parquet", 10)
    with meter.counting():
        _write_dataset(meter.folder / "data.parquet", size)


def _write_dataset(file: Path, size: int) -> None:
    write_dataset(file, (_distilled(number) for number in range(size)), {})


@grows("SFT: the data set read", "samples", (1000, 4000, 16_000), cpu_s=WORK, memory=HISTORY)
def dataset_read(size: int, meter: Meter) -> None:
    meter.apart(lambda: _write_dataset(meter.folder / "data.parquet", size))
    with meter.counting():
        assert sum(1 for _ in dataset_rows(meter.folder / "data.parquet")) == size


@grows("near-duplicates", "samples", (250, 1000, 4000), cpu_s=WORK, memory=WORK)
def near_duplicates(size: int, meter: Meter) -> None:
    tokens = [sample_of(number, 0, 0, 512).tokens for number in range(size)]
    with meter.counting():
        duplicates(tokens, threshold=0.8)
