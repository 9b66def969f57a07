"""Tokens a second of the Trainer against a bare Megatron-core loop with the same passes.

Both train the same weights on the same micro-batches in the same order; their losses must agree,
which proves that they do. The Trainer starts from samples that are handed to it as the loop hands
them to a rank (pickled, as Ray does it) and gives metrics; the bare loop gets its micro-batches
ready made and gives nothing.
"""

from __future__ import annotations

import math
import pickle
import random
import statistics
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import torch

from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence, plan_micro_batches
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.train.pack import FlatSequences, build_pack
from engines.step_inputs import StepInputs
from engines.types import Sample, Status
from tests.parts.sample_parts import sample_of
from tests.programs.bench.bare_megatron import (
    BareLoop,
    Loss,
    MicroBatch,
    clipped_policy,
    cross_entropy,
)
from tests.programs.bench.clock import Spent, median_ratio, timed
from tests.programs.bench.rows import Row
from tests.programs.bench.workbench import CONSTANT, Workbench

GROUP = 8


def measure(bench: Workbench) -> list[Row]:
    trainer, bare = bench.trainer(), BareLoop(bench.model, CONSTANT.lr)
    name = "bare Megatron-core"
    return [sft(bench, trainer, bare, name, 0.9), rl(bench, trainer, bare, name, 0.9)]


class ReferenceLoop(Protocol):
    def step(self, batches: list[MicroBatch], loss: Loss) -> float: ...


def sft(
    bench: Workbench, trainer: RlTrainer, bare: ReferenceLoop, reference_name: str, floor: float
) -> Row:
    batches = bench.batches(bench.sizes.sft_steps)
    laid_out = [_micro_batches(trainer, batch) for batch in batches]
    ours_loss: list[float] = []
    bare_loss: list[float] = []

    def ours() -> None:
        ours_loss[:] = [metrics["loss"] for metrics in trainer.sft_steps(_handed_over(batches))]

    def reference() -> None:
        bare_loss[:] = [bare.step(step, cross_entropy) for step in laid_out]

    ratio, note = _compare(bench, ours, reference, sum(len(s.tokens) for b in batches for s in b))
    _agree(ours_loss, bare_loss)
    return Row(
        f"trainer tokens/s over {reference_name}, SFT", ratio, "ratio", floor=floor, note=note
    )


def rl(
    bench: Workbench, trainer: RlTrainer, bare: ReferenceLoop, reference_name: str, floor: float
) -> Row:
    algorithm = Algorithm()
    samples = rl_samples(bench, trainer)
    # The Trainer shuffles by its number of steps; the bare loop is given one such order.
    batch = RlBatch.of(samples, algorithm)
    steps = [
        _policy_batches(trainer, batch, indices)
        for indices in batch.mini_batches(algorithm.mini_batches, trainer.seed, trainer.steps_done)
    ]
    ours_loss: list[float] = []
    bare_loss: list[float] = []

    def ours() -> None:
        ours_loss.append(
            trainer.rl_step(StepInputs(_handed_over(samples), algorithm, gate=True)).metrics["loss"]
        )

    def reference() -> None:
        bare_loss.append(statistics.mean(bare.step(step, clipped_policy) for step in steps))

    ratio, note = _compare(bench, ours, reference, len(batch.flat.tokens))
    _agree(ours_loss[:1], bare_loss[:1])
    return Row(
        f"trainer tokens/s over {reference_name}, RL", ratio, "ratio", floor=floor, note=note
    )


_T = TypeVar("_T")


def _handed_over(given: _T) -> _T:
    """As it arrives at a rank."""
    return pickle.loads(pickle.dumps(given, protocol=5))


def _compare(
    bench: Workbench, ours: Callable[[], None], reference: Callable[[], None], num_tokens: int
) -> tuple[float, str]:
    """Alternate both; the first of each warms up. By wall time, and a note."""
    repeats = bench.sizes.repeats
    mine: list[Spent] = []
    theirs: list[Spent] = []
    for _ in range(repeats + 1):
        mine.append(timed(ours))
        theirs.append(timed(reference))
    ratio = median_ratio(theirs[1:], mine[1:])
    speed = num_tokens / statistics.median(spent.wall for spent in mine[1:])
    return ratio.wall, (
        f"{speed:.0f} tokens/s; by CPU seconds {ratio.cpu:.2f}; median of {repeats} pairs"
    )


def _agree(ours: list[float], bare: list[float]) -> None:
    for a, b in zip(ours, bare, strict=True):
        if not math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-5):
            raise RuntimeError(f"the bare loop does other work: its loss is {b}, ours {a}")


def _micro_batches(trainer: RlTrainer, batch: list[TokenSequence]) -> list[MicroBatch]:
    flat = FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])
    return [
        MicroBatch(build_pack(flat, indices, trainer.layout))
        for indices in _plan(trainer, flat.lengths)
    ]


def _policy_batches(trainer: RlTrainer, batch: RlBatch, indices: np.ndarray) -> list[MicroBatch]:
    built: list[MicroBatch] = []
    advantages = batch.targets(Algorithm(), None, None).advantages
    for part in _plan(trainer, batch.flat.lengths[indices]):
        pack = build_pack(batch.flat, [int(indices[i]) for i in part], trainer.layout)
        old = torch.from_numpy(batch.engine_logprobs[pack.targets])
        built.append(MicroBatch(pack, old, torch.from_numpy(advantages[pack.targets])))
    return built


def _plan(trainer: RlTrainer, lengths: np.ndarray) -> list[list[int]]:
    costs = lengths.astype(float).tolist()
    return plan_micro_batches(lengths.tolist(), trainer.spec.most_tokens, 1, costs)[0]


def rl_samples(bench: Workbench, trainer: RlTrainer) -> list[Sample]:
    """Demonstrations as if the policy had sampled them, with rewards by chance."""
    chosen = bench.demonstrations[: bench.sizes.rl_samples]
    scored = trainer.logprobs([s.tokens for s in chosen])
    draw = random.Random(0)
    return [
        sample_of(
            problem_id=f"p{i // GROUP}",
            domain="bench",
            group_id=f"g{i // GROUP}",
            rollout_id=f"r{i}",
            sample_index=i % GROUP,
            tokens=s.tokens,
            loss_mask=s.loss_mask,
            logprobs=[value * m for value, m in zip(values, s.loss_mask, strict=True)],
            weight_versions=[0 if m else -1 for m in s.loss_mask],
            status=Status.COMPLETED,
            reward=float(draw.random() < 0.5),
            token_budget=len(s.tokens),
        )
        for i, (s, values) in enumerate(zip(chosen, scored, strict=True))
    ]
