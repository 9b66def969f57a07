"""One rank of a policy in reinforcement learning. One step of it:

    samples -> old, reference, teachers' logprobs -> advantages, weights
            -> mini-batches: gate, update

With routing replay, passes of the policy take the engine's experts where they are known, and else
those of the pass for the old logprobs; the reference and teachers choose their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.losses import PairLoss
from engines.algorithms.spec import Algorithm
from engines.devices.units import TrainerPart
from engines.megatron import device
from engines.megatron.adapters import adapters_off
from engines.megatron.hf.layout import served_weights
from engines.megatron.model import PolicyModel
from engines.megatron.options import REPLAY_NEEDS_EXPERTS
from engines.megatron.parallel import control_group, start_parallel, stop_parallel
from engines.megatron.rl.agreement import (
    check_agreement,
    known_tokens,
    mismatch_of,
    shown_logprobs,
)
from engines.megatron.rl.rl_batch import RlBatch, is_by_group
from engines.megatron.rl.rl_objective import RlObjective, temperature_of
from engines.megatron.rl.sample_parts import NoPairsError, pair_metrics
from engines.megatron.rl.teachers import Reference, Teachers
from engines.megatron.train.pack import FlatSequences
from engines.megatron.train.policy_trainers import SftTrainer
from engines.megatron.train.routes import Routes
from engines.megatron.train.speed import Stopwatch
from engines.step_inputs import StepInputs, TrainedStep, Values
from engines.weights.buckets import TrainedWeights
from engines.weights.choice import transport_to
from engines.weights.cuda_ipc import gpu_of
from engines.weights.ranks import Ranks
from engines.weights.spec import WeightTransport
from engines.weights.transport import PublishReport, Transport, as_taken, find_targets
from infra.errors import EngineError, InputError, TrainingStopped

if TYPE_CHECKING:
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


__all__ = ["RlTrainer", "start_parallel", "stop_parallel"]
_AUTO = WeightTransport()


class RlTrainer(SftTrainer):
    """This process's share of one policy in training."""

    _reference: Reference | None = None
    teachers: Teachers | None = None
    """set by `load_teachers`"""
    _transport: Transport | None = None
    """made by the first publish, which knows where the servers are"""

    @property
    def policy(self) -> PolicyModel:
        return cast("PolicyModel", self.network)

    # Training

    def rl_step(self, inputs: StepInputs) -> TrainedStep:
        """Train on one batch of rollouts: `algorithm.mini_batches` optimizer steps.

        What becomes of samples that cannot be trained on: `engines.algorithms.aggregation`. With
        `gate`, the mean difference between trainer and engine logprobs of tokens that the present
        weights wrote, before any update, must not pass `algorithm.agreement_gate`. Raises
        AgreementError, TrainingStopped.
        """
        return train_on(self, inputs)

    def token_rewards(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Return what the KL term adds to each token's reward, as flat as `RlBatch.flat`: a critic
        learns the same rewards. For `kl.place: reward`."""
        return token_rewards_of(self, inputs)

    # Scoring

    def routes(self, num_tokens: int) -> Routes:
        """Return where the experts of so many tokens can be noted. Raises InputError for a dense
        model."""
        if self.shape.mixture is None:
            raise InputError(REPLAY_NEEDS_EXPERTS)
        numbers = (router.layer_number for router in self._routers.each)
        layers = [number - 1 for number in numbers if number is not None]
        return Routes(num_tokens, layers, self.shape.num_layers, self.shape.mixture)

    def reference_score(
        self, flat: FlatSequences, temperature: float | NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Score under the weights that this Trainer was made with."""
        if self.spec.lora is not None:
            with adapters_off(self.policy):
                return self.score(flat, temperature)
        if self._reference is None:
            self._reference = Reference(self.policy, partial(self.load_folder, self._model))
        with self._reference.in_place(self.policy):
            return self.score(flat, temperature)

    def read_all(
        self,
        flat: FlatSequences,
        head: Mapping[str, Any],
        indices: NDArray[np.int64],
        places: NDArray[np.int64],
        numbers: int,
    ) -> NDArray[np.float32]:
        """[numbers, places] the first ones that the head says of each trained token of these
        sequences. The tokens are at these ascending `places`. A collective."""
        whole = torch.zeros(numbers, len(places), device=device.device())
        said = self.said(flat, head, indices)
        for pack, each in said if self.layout.is_loss_rank else []:
            whole[:, torch.from_numpy(np.searchsorted(places, pack.targets))] = each[:numbers]
        if self.layout.world > 1:
            dist.all_reduce(whole)
        return whole.cpu().numpy()

    def load_teachers(self, folders: Mapping[str, Path], served: Sequence[str] = ()) -> None:
        """Remember where each domain's frozen model is, for steps that ask for teachers; what those
        of the domains `served` say is given with each step."""
        self.teachers = Teachers(self, folders, served)

    # Weights

    def tensors_of(self, part: TrainerPart) -> Iterator[Tensor]:
        yield from super().tensors_of(part)
        if part == "frozen" and self._reference is not None:
            yield from self._reference.weights

    def trained_weights(self) -> TrainedWeights:
        """This rank's share of the weights as a transport takes them."""
        layout, parallel = self.layout, self.layout.parallel
        ranks = Ranks(
            rank=layout.rank,
            world=layout.world,
            stage=layout.pp_rank,
            num_stages=parallel.pp,
            shard=layout.tp_rank,
            num_shards=parallel.tp,
            replica=layout.dp_rank * parallel.cp + layout.cp_rank,
            num_replicas=parallel.dp * parallel.cp,
            shard_group=layout.tp_group,
            control_group=control_group(),
        )
        if parallel.ep > 1:
            # Experts lie across data-parallel ranks: none of these is a replica.
            number, count = ranks.replica * parallel.tp + ranks.shard, layout.world // parallel.pp
            ranks = replace(
                ranks,
                shard=number,
                num_shards=count,
                replica=0,
                num_replicas=1,
                shard_group=layout.stage_group,
            )
        return TrainedWeights(served_weights(self.network, self.shape, layout), ranks)

    def publish(
        self, endpoints: Sequence[str], version: int, how: WeightTransport = _AUTO
    ) -> PublishReport:
        """Give the current weights to generation servers as `version`; all ranks take part.
        `how` counts at the first publish.

        A server that refuses is in the report: the ranks stay in step, and the publish can be
        repeated.
        """
        weights = self.trained_weights()
        try:
            targets = weights.ranks.from_leader(lambda: find_targets(endpoints))
            self._transport = self._transport or transport_to(
                targets, weights.ranks, how, gpu_of(weights)
            )
            return self._transport.push(as_taken(weights, targets), targets, version)
        except EngineError as error:
            return PublishReport(version, "", 0, 0, 0.0, refused=str(error))

    def close(self) -> None:
        super().close()
        if self._transport is not None:
            self._transport.close()
