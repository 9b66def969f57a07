"""From rollouts to mini-batches: each trained token's advantage, the same on every rank.

Every rank sees the step's whole batch and computes the same numbers, so that means are global
without communication; it keeps those of its own part. Axes: N samples, R trained tokens, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.algorithms.advantages import CRITIC_TARGETS, advantages
from engines.algorithms.aggregation import ConstantMean, counts, shares, trains
from engines.algorithms.corrections import Weight
from engines.algorithms.inputs import CountedOnly, StepTokens, Trajectories
from engines.algorithms.losses import Kl, Overlong, policy_loss
from engines.algorithms.parts import our_part
from engines.algorithms.spec import Algorithm
from engines.algorithms.statistics import LOG_BOUND
from engines.megatron.parallel import Layout
from engines.megatron.rl.rl_objective import RlObjective, RlTargets, temperature_of
from engines.megatron.rl.sample_parts import (
    broken_last,
    compared_samples,
    components_of,
    numbered,
    sides,
    turns_of,
)
from engines.megatron.train.pack import FlatSequences, sparse_zeros
from engines.types import Sample
from infra.config import Choice
from infra.errors import TrainingStopped

if TYPE_CHECKING:
    from engines.megatron.rl.teachers import TeacherScores

Floats = NDArray[np.float32]
BLOCK_TOKENS = 1 << 18
"""about how many are worked on at once: a hundred bytes for each are needed"""
LEAST_LOGPROB = -1000.0
"""an engine may say that a token which it sampled had no probability at all"""


def is_by_group(algorithm: Algorithm) -> bool:
    """Return whether nothing but its group's samples decides what a sample is worth, and no model's
    numbers do."""
    advantage, kl = algorithm.advantage, algorithm.kl
    return (
        isinstance(advantage, Choice)
        and not advantage.whiten
        and not {"critic", "teachers", "reference"}.intersection(advantage.needs)
        and not algorithm.compares_engines
        and not (kl.coef and kl.place == "reward")
    )


@dataclass(frozen=True, slots=True)
class RlBatch:
    """The samples of a step, as arrays."""

    samples: list[Sample]
    """those with tokens to train on, then those whose reward alone counts"""
    flat: FlatSequences
    """of all samples"""
    learned: FlatSequences
    """of the samples to train on, whose T tokens are the first of `flat`"""
    num_trained: NDArray[np.int64]
    """[N'] trained tokens of each of them"""
    rollouts: NDArray[np.int64]
    """[N] number of each sample's rollout, in order of appearance"""
    engine_logprobs: Floats
    """of all samples' tokens, at least LEAST_LOGPROB; of those that `fill` was told of"""
    pairs: Sequence[int] | None = None
    """how many samples each compared pair has, whose better rollout's come first; None: no pairs"""

    @staticmethod
    def of(samples: Sequence[Sample], algorithm: Algorithm, *, is_filled: bool = True) -> RlBatch:
        """`is_filled`: all `engine_logprobs` are there. Raises TrainingStopped without samples,
        NoPairsError without the pairs that a loss compares."""
        kept = [s for s in samples if trains(s, algorithm.truncated)]
        if not kept:
            raise TrainingStopped(
                f"none of the step's {len(samples)} samples is trainable: all failed, were"
                " aborted, are masked as truncated, or have no trained token"
            )
        reward_only = [s for s in samples if counts(s) and not trains(s, algorithm.truncated)]
        batch = RlBatch._of_kept(kept, reward_only)
        if algorithm.compares_pairs:
            rewards_N = batch.rewards(algorithm)[: len(kept)]
            compared, pairs = compared_samples(kept, rewards_N, algorithm.advantage)
            batch = RlBatch._of_kept(compared, [], pairs)
        if algorithm.keep is not None and batch.learned.kept is None:
            raise TrainingStopped("algorithm.keep: no sample says what was kept; leave it out")
        batch.fill(range(len(batch.samples)) if is_filled else ())
        return batch

    @staticmethod
    def _of_kept(
        kept: list[Sample], reward_only: list[Sample], pairs: Sequence[int] | None = None
    ) -> RlBatch:
        samples = [*kept, *reward_only]
        flat = FlatSequences.of_samples(samples, pairs)
        learned = FlatSequences.of_samples(kept) if reward_only else flat
        return RlBatch(
            samples=samples,
            flat=flat,
            learned=learned,
            num_trained=learned.num_trained,
            rollouts=numbered([(s.group_id, s.rollout_id) for s in samples]),
            engine_logprobs=sparse_zeros(flat.num_tokens),
            pairs=pairs,
        )

    def fill(self, indices: Iterable[int]) -> None:
        """Have the engine's logprobs of these samples."""
        for n in indices:
            self._of_sample(self.engine_logprobs, n)[:] = self.engine(n)

    def engine(self, n: int) -> Floats:
        """Return a sample's, whether they were filled in or not."""
        return np.maximum(self.samples[n].logprobs, LEAST_LOGPROB, dtype=np.float32)

    def _of_sample(self, values: NDArray[Any], n: int) -> NDArray[Any]:
        """Return a view of a sample's own among [T] values."""
        first = int(self.flat.starts[n])
        return values[first : first + int(self.flat.lengths[n])]

    def mini_batches(self, count: int, seed: int, step: int) -> Iterator[NDArray[np.int64]]:
        """Indices of the samples of each of `count` (or fewer) mini-batches, shuffled by the seed
        and the number of optimizer steps done, so that a resumed run shuffles alike.

        The samples of one rollout stay together, as they share a denominator, and those of a pair.
        """
        of_trained = self.rollouts[: len(self.num_trained)]
        if self.pairs is not None:
            of_trained = self.learned.comparison
        numbers = np.unique(of_trained)
        order = np.random.default_rng([seed, step]).permutation(numbers)
        by_rollout = np.argsort(of_trained, kind="stable")
        starts = np.searchsorted(of_trained[by_rollout], numbers)
        members = dict(zip(numbers.tolist(), np.split(by_rollout, starts[1:]), strict=True))
        for part in np.array_split(order, min(count, len(order))):
            yield np.concatenate([members[number] for number in part.tolist()])

    def targets(
        self,
        algorithm: Algorithm,
        trainer: Floats | None,
        reference: Floats | None,
        values: Floats | None = None,
        token_rewards: Floats | None = None,
        teachers: TeacherScores | None = None,
        own: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> RlTargets:
        """Return what the step's tokens are worth, before its first update; with `own`, those of
        these samples, if nothing but its group decides what a sample is worth (`is_by_group`).

        `trainer` and `reference` are logprobs of the present and the first weights on the tokens
        of `scored`, `values` the critic's [T] and `token_rewards` those of `kl_rewards`, where the
        algorithm asks for them.
        """
        old = self.engine_logprobs if trainer is None else trainer
        in_loss = reference if algorithm.loss_reads_reference else None
        if self.pairs is not None or own is not None:
            chosen = np.arange(len(self.num_trained)) if own is None else np.asarray(own)
            worth = sides(self, chosen) if self.pairs else self._by_group(algorithm, chosen)
            return RlTargets(self.engine_logprobs, old, worth, reference=in_loss)
        if token_rewards is None:
            token_rewards = self.kl_rewards(algorithm, trainer, reference)
        tokens = self._step_tokens(algorithm, old, token_rewards, values, reference, teachers)
        metrics = teachers.metrics(tokens.logprobs_R) if teachers is not None else {}
        weights = None
        if algorithm.compares_engines:
            made = our_part(Weight.code)(
                algorithm.correction,
                tokens.logprobs_R,
                self._at(self.engine_logprobs),
                tokens.sequence_R,
                len(self.num_trained),
            )
            weights, metrics = self._spread(made.weights_R), metrics | made.metrics
        return RlTargets(
            engine_logprobs=self.engine_logprobs,
            old_logprobs=old,
            advantages=self._spread(advantages(algorithm.advantage, tokens)),
            weights=weights,
            reference=in_loss,
            metrics=metrics,
            top=teachers.top if teachers else None,
        )

    def _by_group(self, algorithm: Algorithm, own: NDArray[np.int64]) -> Floats:
        """[T] advantages of these samples, a few groups at a time."""
        worth = sparse_zeros(self.learned.num_tokens)
        is_own = np.zeros(len(self.samples), np.bool_)
        is_own[own] = True
        for chosen in filter(lambda each: is_own[each].any(), self._blocks()):
            trained = chosen[chosen < len(self.num_trained)]
            part = self._of_kept(
                [self.samples[n] for n in trained],
                [self.samples[n] for n in chosen[len(trained) :]],
            )
            part.fill(range(len(chosen)))
            nothing = np.zeros(part.flat.num_tokens, np.float32)
            tokens = part._step_tokens(algorithm, part.engine_logprobs, nothing, None)  # noqa: SLF001
            found = part._spread(advantages(algorithm.advantage, tokens))  # noqa: SLF001
            for place, n in enumerate(trained.tolist()):
                if is_own[n]:
                    self._of_sample(worth, n)[:] = part._of_sample(found, place)  # noqa: SLF001
        return worth

    def _blocks(self) -> Iterator[NDArray[np.int64]]:
        """All samples, ascending in each part: whole groups of about BLOCK_TOKENS together."""
        groups = numbered([s.group_id for s in self.samples])
        by_group = np.argsort(groups, kind="stable")
        sizes = np.bincount(groups, self.flat.lengths)
        ends = np.cumsum(np.bincount(groups))
        first, tokens = 0, 0.0
        for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
            tokens += size
            if tokens >= BLOCK_TOKENS or end == len(groups):
                yield np.sort(by_group[first:end])
                first, tokens = end, 0.0

    def scored(self, algorithm: Algorithm) -> FlatSequences:
        """Return what the trainer and the reference score: the samples to train on, and where each
        token's KL is part of the rewards that a group compares, the others as well."""
        in_reward = algorithm.kl.coef and algorithm.kl.place == "reward"
        return self.flat if in_reward else self.learned

    def kl_rewards(
        self, algorithm: Algorithm, trainer: Floats | None, reference: Floats | None
    ) -> Floats:
        """Return what each token's distance from the reference costs it, of all samples' tokens;
        zeros without such a term. A token counts as at most 20 nats away."""
        kl, flat = algorithm.kl, self.flat
        rewards = np.zeros(flat.num_tokens, np.float32)
        if reference is None or kl.place != "reward":
            return rewards
        places = np.flatnonzero(flat.trained)
        old = self.engine_logprobs if trainer is None else trainer
        old_R, reference_R = (torch.from_numpy(x[places]).double() for x in (old, reference))
        old_R = old_R.clamp(reference_R - LOG_BOUND, reference_R + LOG_BOUND)
        distance_R = our_part(Kl.code)(old_R, reference_R, kl.estimator)
        rewards[places] = (-kl.coef * distance_R).numpy()
        return rewards

    def returns(self, algorithm: Algorithm, values: Floats, token_rewards: Floats | None) -> Floats:
        """[T] what a critic that said `values` should have said of each trained token."""
        target = algorithm.critic_target
        if target is None:
            raise ValueError(f"advantage {algorithm.advantage.kind} needs no critic")
        if token_rewards is None:
            token_rewards = np.zeros(self.flat.num_tokens, np.float32)
        tokens = self._step_tokens(algorithm, self.engine_logprobs, token_rewards, values)
        return self._spread(our_part(CRITIC_TARGETS)(target, tokens))

    def valued(self, algorithm: Algorithm) -> FlatSequences:
        """The sequences with every token marked whose state needs a value: the trained ones, or
        all from the first to the last of these where observations are steps."""
        target = algorithm.critic_target
        if target is not None and target.skip_observations:
            return self.learned
        return replace(self.learned, trained=self._spans(), kept=None)

    def _spans(self) -> NDArray[np.bool_]:
        """[T] whether a token stands between its sample's first and last trained ones."""
        trained = self.learned.trained
        before = np.cumsum(trained) - trained
        before = before - np.repeat(before[self.learned.starts], self.learned.lengths)
        return (before + trained > 0) & (before < np.repeat(self.num_trained, self.learned.lengths))

    def _trajectories(self, values: Floats) -> Trajectories:
        span = self._spans()
        sequence = np.repeat(np.arange(len(self.num_trained)), self.learned.lengths)
        return Trajectories(
            values_S=torch.from_numpy(values[span]).double(),
            sequence_S=torch.from_numpy(sequence[span]),
            trained_S=torch.from_numpy(self.learned.trained[span]),
        )

    def _step_tokens(
        self,
        algorithm: Algorithm,
        logprobs: Floats,
        token_rewards: Floats,
        values: Floats | None,
        reference: Floats | None = None,
        teachers: TeacherScores | None = None,
    ) -> StepTokens:
        num_trained = torch.from_numpy(self.num_trained)
        return StepTokens(
            rewards_N=self.rewards(algorithm),
            group_N=torch.from_numpy(numbered([s.group_id for s in self.samples])),
            rollout_N=torch.from_numpy(self.rollouts),
            sequence_R=torch.arange(len(num_trained)).repeat_interleave(num_trained),
            logprobs_R=self._at(logprobs),
            token_rewards_R=self._at(token_rewards),
            trajectories=None if values is None else self._trajectories(values),
            reference_logprobs_R=None if reference is None else self._at(reference),
            teacher_logprobs_KR=None if teachers is None else teachers.logprobs_KR,
            teacher_weights_NK=None if teachers is None else teachers.weights_NK,
            turns=turns_of(self.samples, self.flat, len(num_trained))
            if "turns" in algorithm.needs
            else None,
            components=components_of(self.samples) if "components" in algorithm.needs else None,
            counted_only=self._counted_only(token_rewards),
        )

    def _counted_only(self, token_rewards: Floats) -> CountedOnly | None:
        """The tokens of samples that are not trained on; None if there are none."""
        if self.flat is self.learned:
            return None
        places = np.flatnonzero(self.flat.trained)[int(self.num_trained.sum()) :]
        sequence = np.searchsorted(self.flat.starts, places, side="right") - 1
        return CountedOnly(
            torch.from_numpy(sequence), torch.from_numpy(token_rewards[places]).double()
        )

    def rewards(self, algorithm: Algorithm) -> torch.Tensor:
        """[N] each sample's reward minus the penalty for its rollout's length; a rollout that broke
        a protocol has at most the least of its group."""
        rewards_N = torch.tensor([s.reward for s in self.samples], dtype=torch.float64)
        overlong = algorithm.overlong
        if overlong is None:
            return broken_last(self.samples, rewards_N)
        rollout_N = torch.from_numpy(self.rollouts)
        tokens_N = torch.tensor([s.num_trained_tokens for s in self.samples])
        total = tokens_N.new_zeros(int(rollout_N.max()) + 1).index_add(0, rollout_N, tokens_N)
        budgets_N = self._budgets(overlong.budget, "overlong.budget")
        penalty_N = our_part(Overlong.code)(total[rollout_N], budgets_N, margin=overlong.margin)
        return broken_last(self.samples, rewards_N + overlong.weight * penalty_N)

    def _budgets(self, written: int | None, field: str) -> torch.Tensor:
        """[N] the token budget of each sample's rollout, or what a person wrote instead."""
        if written is not None:
            return torch.full((len(self.samples),), written)
        budgets = torch.tensor([s.token_budget for s in self.samples])
        if (budgets < 1).any():
            raise TrainingStopped(f"samples without a token budget: set algorithm.{field}")
        return budgets

    def objective(
        self, algorithm: Algorithm, layout: Layout, targets: RlTargets, indices: NDArray[np.int64]
    ) -> RlObjective:
        """The objective of the mini-batch `indices`; its denominators are the mini-batch's."""
        mean = algorithm.aggregation
        lengths = None
        if isinstance(mean, ConstantMean):
            lengths = self._budgets(mean.length, "aggregation.length")[indices]
        found = shares(
            mean.kind,
            torch.from_numpy(self.num_trained[indices]),
            torch.from_numpy(self.rollouts[indices]),
            lengths,
        )
        weight = np.zeros(len(self.num_trained), np.float32)
        units = np.zeros(len(self.num_trained), np.int64)
        weight[indices], units[indices] = found.weight_N.numpy(), found.units_N.numpy()
        return RlObjective(
            algorithm,
            layout,
            targets,
            self.num_trained,
            weight,
            units,
            policy_loss(algorithm.loss),
            temperature_of(self.samples, algorithm),
            None if self.pairs is None else self.learned.comparison,
        )

    def trained(self, indices: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return where the trained tokens are among all T, of all samples or of these."""
        if indices is None:
            return np.flatnonzero(self.learned.trained)
        places = [self.trained_in(n) for n in np.sort(indices).tolist()]
        return np.concatenate([np.empty(0, np.int64), *places])

    def trained_in(self, n: int) -> NDArray[np.int64]:
        """Return the trained places of one sample."""
        return self.learned.starts[n] + np.flatnonzero(self._of_sample(self.learned.trained, n))

    def _at(self, values: Floats) -> torch.Tensor:
        """[R] float64 values of the trained tokens."""
        return torch.from_numpy(values[self.trained()]).double()

    def _spread(self, values_R: torch.Tensor) -> Floats:
        """[T] of values of the trained tokens; 0 elsewhere."""
        whole = np.zeros(self.learned.num_tokens, np.float32)
        whole[self.trained()] = values_R.numpy()
        return whole
