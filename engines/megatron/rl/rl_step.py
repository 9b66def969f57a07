"""One step of reinforcement learning on one rank.

samples -> old, reference, teachers' logprobs -> advantages, weights -> mini-batches: gate, update

With routing replay, passes of the policy take the engine's experts where they are known, and else
those of the pass for the old logprobs; the reference and teachers choose their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engines.algorithms.losses import PairLoss
from engines.algorithms.spec import Algorithm
from engines.megatron.rl.agreement import (
    check_agreement,
    known_tokens,
    mismatch_of,
    shown_logprobs,
)
from engines.megatron.rl.pairs import NoPairsError, pair_metrics
from engines.megatron.rl.rl_batch import RlBatch, is_by_group
from engines.megatron.rl.rl_objective import RlObjective, temperature_of
from engines.megatron.train.stopwatch import Stopwatch
from engines.step_inputs import StepInputs, TrainedStep, Values
from infra.errors import TrainingStopped

if TYPE_CHECKING:
    from engines.megatron.rl.trainer import RlTrainer
    from engines.megatron.train.routes import Routes
    from engines.megatron.train.training import StepStats


def train_on(trainer: RlTrainer, inputs: StepInputs) -> TrainedStep:
    """See `RlTrainer.rl_step`."""
    began = Stopwatch.start()
    trainer.scored_flops = 0.0  # of an agreement measured between two steps
    algorithm, token_rewards = inputs.algorithm, inputs.token_rewards
    alone = is_by_group(algorithm) and inputs.values is None and token_rewards is None
    try:
        batch = RlBatch.of(inputs.samples, algorithm, is_filled=not alone)
    except NoPairsError:
        return TrainedStep()
    parts = list(batch.mini_batches(algorithm.mini_batches, trainer.seed, trainer.steps_done))
    own = trainer.own_part(batch.learned, parts) if alone else None
    if own is not None:
        batch.fill(own.tolist())
    routes = _routes(trainer, batch, algorithm)
    old = _old(trainer, batch, algorithm, routes)
    learned = replace(batch.learned, routes=routes)
    reference = _reference(trainer, batch, algorithm) if _reads_reference(inputs) else None
    teachers = None
    if "teachers" in algorithm.needs:
        assert trainer.teachers is not None, f"{algorithm.advantage.kind}: no teachers are loaded"
        teachers = trainer.teachers.score(trainer, batch, inputs)
    targets = batch.targets(algorithm, old, reference, inputs.values, token_rewards, teachers, own)
    mismatch: dict[str, float] = {}
    of_pairs: dict[str, float] = {}
    shown: dict[int, Values] = {}
    steps: list[StepStats] = []
    norms: list[float] = []
    for indices in parts:
        objective = batch.objective(algorithm, trainer.layout, targets, indices)
        stats = trainer.forward_backward(learned, indices, objective)
        if not steps:
            ours, those = _before_updates(trainer, batch, old, objective, indices)
            known = partial(known_tokens, batch, ours, those, inputs.version)
            mismatch = mismatch_of(known(), int(batch.num_trained[those].sum()))
            shown = shown_logprobs(batch, inputs, ours, those)
            if isinstance(algorithm.loss, PairLoss):
                groups = len({s.group_id for s in inputs.samples})
                of_pairs = pair_metrics(
                    batch, algorithm.loss, ours, targets.reference, those, groups
                )
            if inputs.gate:
                check_agreement(known(), algorithm.agreement_gate, batch)
        objective.seen.clear()
        steps.append(stats)
        norms.append(trainer.update())
    rates = trainer.rates(batch.learned, began)
    means = {**_means(steps, algorithm), "grad_norm": sum(norms) / len(norms)}
    return TrainedStep({**means, **of_pairs, **mismatch, **targets.metrics, **rates}, shown)


def token_rewards_of(trainer: RlTrainer, inputs: StepInputs) -> NDArray[np.float32]:
    """See `RlTrainer.token_rewards`."""
    algorithm = inputs.algorithm
    batch = RlBatch.of(inputs.samples, algorithm)
    old = _old(trainer, batch, algorithm, _routes(trainer, batch, algorithm))
    reference = _reference(trainer, batch, algorithm)
    return batch.kl_rewards(algorithm, old, reference)


def _routes(trainer: RlTrainer, batch: RlBatch, algorithm: Algorithm) -> Routes | None:
    """Return the experts that the engine said of tokens, to be replayed; None without replay."""
    if algorithm.routing_replay == "none":
        return None
    routes = trainer.routes(batch.flat.num_tokens)
    if algorithm.routing_replay == "engine":
        for first, sample in zip(batch.flat.starts.tolist(), batch.samples, strict=True):
            if sample.experts is not None:
                routes.take(first, sample.experts)
        if not routes.known_T.any():
            raise TrainingStopped(
                "algorithm.routing_replay: engine: no sample of this step says which experts the"
                " servers chose; set old_logprobs and routing_replay to trainer"
            )
    return routes


def _old(
    trainer: RlTrainer, batch: RlBatch, algorithm: Algorithm, routes: Routes | None = None
) -> NDArray[np.float32] | None:
    """The trainer's own logprobs before the step, on the tokens of `RlBatch.scored`, whose experts
    `routes` gets; None if the engine's are used instead."""
    if algorithm.old_logprobs == "engine":
        return None
    temperature = temperature_of(batch.samples, algorithm)
    return trainer.score(replace(batch.scored(algorithm), routes=routes), temperature)


def _reference(
    trainer: RlTrainer, batch: RlBatch, algorithm: Algorithm
) -> NDArray[np.float32] | None:
    """Logprobs of the first weights, as `RlBatch.scored`; None if nothing needs them."""
    if "reference" not in algorithm.needs:
        return None
    temperature = temperature_of(batch.samples, algorithm)
    return trainer.reference_score(batch.scored(algorithm), temperature)


def _reads_reference(inputs: StepInputs) -> bool:
    """Not so where the KL penalty is already among the token rewards."""
    return inputs.token_rewards is None or "reference" in inputs.algorithm.advantage.needs


def _before_updates(
    trainer: RlTrainer,
    batch: RlBatch,
    old: NDArray[np.float32] | None,
    objective: RlObjective,
    indices: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The trainer's logprobs [T] before any update, and the samples that have them: all where they
    were recomputed, else those of the first mini-batch."""
    if old is not None:
        return old, np.arange(len(batch.num_trained))
    return trainer.gathered(objective.seen, batch.learned.num_tokens), indices


def _means(steps: list[StepStats], algorithm: Algorithm) -> dict[str, float]:
    """Means over all mini-batches' tokens."""
    tokens = sum(s.sums["tokens"] for s in steps)

    def mean(name: str) -> float:
        return sum(s.sums[name] for s in steps) / tokens

    metrics = {
        "loss": sum(s.mean("loss", "units") for s in steps) / len(steps),
        "entropy": mean("entropy"),
        "ratio_mean": mean("ratio"),
        "ratio_max": max(s.peaks["ratio"] for s in steps),
        "clip_fraction": mean("clip"),
        "extreme_ratio_tokens": sum(s.sums["extreme"] for s in steps),
        "kl_k3": mean("kl"),
    }
    if algorithm.kl.coef and algorithm.kl.place == "loss":
        metrics["reference_kl"] = mean("reference_kl")
    if any(r.kind == "opsm" for r in algorithm.correction.reject):
        metrics["opsm_share"] = mean("left")
    return metrics
