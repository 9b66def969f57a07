"""What it costs the stage's process that rollouts of rollout workers come through it, in CPU time.

Of each rollout: its bytes are unpickled as they come from Ray, unpacked, packed again for the
journal, and its samples are pickled for the ranks, where arrays travel beside. `python -m
tests.programs.bench worker_news`.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from engines.rollout.records.journals import Finished, pack_rollouts, unpack_rollouts
from engines.rollout.workers.worker import NewRollout, News
from engines.types import Message, Sample, Status
from engines.weight_versions import NO_VERSION, WeightVersions
from tests.programs.bench.rows import Row

LENGTHS = (200, 1000, 8000)
"""tokens of an answer"""
TOKENS, PROMPT = 200_000, 200
"""of all answers; of a prompt"""
_ROUNDS = 5

T = TypeVar("T")


def measure() -> list[Row]:
    return [_row(length) for length in LENGTHS]


def _row(length: int) -> Row:
    rng = np.random.default_rng(0)
    made = [_rollout(rng, number, length) for number in range(TOKENS // length)]
    told = News(rollouts=tuple(_told(number, each) for number, each in enumerate(made)))
    data = pickle.dumps(told, 5)
    reading, back = _cpu(lambda: pickle.loads(data))
    unpacking, found = _cpu(lambda: [unpack_rollouts(r.packed)[0] for r in back.rollouts])
    noting, _ = _cpu(lambda: pack_rollouts(found))
    shipping, _ = _cpu(lambda: _shipped([s for rollout in found for s in rollout.samples]))
    times = (("read", reading), ("unpack", unpacking), ("journal", noting), ("ship", shipping))
    parts = ", ".join(f"{name} {seconds * 1e6 / TOKENS:.3f}" for name, seconds in times)
    return Row(
        f"rollouts of {length} tokens from workers, in the stage's process",
        sum(seconds for _, seconds in times) * 1e6 / TOKENS,
        "CPU us a token",
        note=f"{parts}; {len(data) / TOKENS:.0f} bytes a token come",
    )


def _rollout(rng: np.random.Generator, number: int, length: int) -> Finished:
    count = PROMPT + length
    sample = Sample(
        problem_id=f"p{number}",
        domain="d",
        group_id=f"{number}/p{number}",
        rollout_id=f"{number}/p{number}#0",
        sample_index=0,
        branch=0,
        tokens=rng.integers(0, 150_000, count, dtype=np.int32),
        loss_mask=np.arange(count) >= PROMPT,
        logprobs=rng.random(count, dtype=np.float32),
        weight_versions=WeightVersions.of_runs([(NO_VERSION, PROMPT), (3, length)]),
        status=Status.COMPLETED,
        token_budget=length,
    )
    return Finished((sample,), (Message("assistant", "word" * length),), 1)


def _told(number: int, made: Finished) -> NewRollout:
    return NewRollout(number, pack_rollouts([made]), made.turns[0].content)


def _shipped(samples: list[Sample]) -> bytes:
    return pickle.dumps(samples, 5, buffer_callback=lambda _: None)


def _cpu(work: Callable[[], T]) -> tuple[float, T]:
    """The least CPU seconds of this thread, over rounds, and what it gave."""
    taken: list[float] = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken), work()
