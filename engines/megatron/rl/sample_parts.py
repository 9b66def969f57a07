"""Parts of a step's samples: the pairs that a preference loss compares, e.g. each group's best and
worst rollout; turns, where each begins, what it answers and earned; what each reward of a rubric
says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from engines.algorithms.advantages import Advantage, advantages
from engines.algorithms.inputs import Components, StepTokens, Turns
from engines.algorithms.losses import PairLoss, pair_formula
from engines.algorithms.preference_losses import Answers
from engines.megatron.train.pack import FlatSequences, sparse_zeros
from engines.types import Sample, Status
from infra.errors import TrainingStopped

if TYPE_CHECKING:
    from engines.megatron.rl.rl_batch import RlBatch


class NoPairsError(Exception):
    """In no group of the step one rollout is better than another."""


def compared_samples(
    samples: Sequence[Sample], rewards_N: torch.Tensor, advantage: Advantage
) -> tuple[list[Sample], list[int]]:
    """The samples of all pairs, group by group, the better rollout's first; and how many each pair
    has. Of equally bad rollouts one that is broken comes last. Raises NoPairsError."""
    groups = numbered([s.group_id for s in samples])
    last = np.argsort([s.is_broken for s in samples], kind="stable")
    samples, rewards_N, groups = [samples[n] for n in last], rewards_N[last], groups[last]
    # Which rollout is better follows from rewards alone: one token stands for each sample.
    zeros_N = torch.zeros_like(rewards_N)
    worth = advantages(
        advantage,
        StepTokens(
            rewards_N=rewards_N,
            group_N=torch.from_numpy(groups),
            rollout_N=torch.from_numpy(numbered([(s.group_id, s.rollout_id) for s in samples])),
            sequence_R=torch.arange(len(samples)),
            logprobs_R=zeros_N,
            token_rewards_R=zeros_N,
        ),
    ).numpy()
    order = [n for n in np.lexsort((-worth, groups)).tolist() if worth[n]]
    if not order:
        raise NoPairsError
    sizes = np.unique(groups[order], return_counts=True)[1]
    return [samples[n] for n in order], sizes.tolist()


def sides(batch: RlBatch, own: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
    """[T] 1 for the tokens of each pair's better rollout, -1 for those of the worse one; 0 for
    samples that are not `own`. Rewards are not asked anew: one that broke a protocol is compared
    with its group's others, of which few are left."""
    worth, is_better = sparse_zeros(batch.learned.num_tokens), _are_better(batch)
    for n in own:
        worth[batch.trained_in(int(n))] = 1.0 if is_better[n] else -1.0
    return worth


def _are_better(batch: RlBatch) -> NDArray[np.bool_]:
    """[N] whether a sample is of its pair's better rollout, whose samples come first."""
    comparison = batch.learned.comparison
    return batch.rollouts == batch.rollouts[np.searchsorted(comparison, comparison)]


def broken_last(samples: Sequence[Sample], rewards_N: torch.Tensor) -> torch.Tensor:
    """[N] rewards, of which a rollout that broke a protocol, or a rule with `veto`, has at most the
    least of its group's others. It has 0, which is more than a reward that is negative.

    Example: rewards -0.5, 0.5 and 0 of a broken one -> -0.5, 0.5, -0.5.
    """
    broken_N = torch.tensor([s.is_broken for s in samples])
    if not broken_N.any():
        return rewards_N
    group_N = torch.from_numpy(numbered([s.group_id for s in samples]))
    others_N = rewards_N.masked_fill(broken_N, torch.inf)
    none = rewards_N.new_full((int(group_N.max()) + 1,), torch.inf)
    of_others_N = none.scatter_reduce(0, group_N, others_N, "amin")[group_N]
    of_all_N = none.scatter_reduce(0, group_N, rewards_N, "amin")[group_N]
    # Of a group without others all are equally bad, however long they are.
    least_N = torch.where(of_others_N.isinf(), of_all_N, rewards_N.minimum(of_others_N))
    return torch.where(broken_N, least_N, rewards_N)


def pair_metrics(
    batch: RlBatch,
    loss: PairLoss,
    logprobs: NDArray[np.float32],
    reference: NDArray[np.float32] | None,
    indices: NDArray[np.int64],
    groups: int,
) -> dict[str, float]:
    """Return what the policy says before its update of the pairs among the samples `indices`, by
    logprobs [T]; `groups`: how many the step has."""
    assert batch.pairs is not None
    comparison, is_better = batch.learned.comparison, _are_better(batch)
    sums = np.zeros((len(batch.pairs), 2, 3))
    """of each pair's better and worse rollout: its logprob, the reference's, and its tokens"""
    for n in indices.tolist():
        places = batch.trained_in(n)
        of_reference = 0.0 if reference is None else reference[places].sum(dtype=np.float64)
        told = (logprobs[places].sum(dtype=np.float64), of_reference, len(places))
        sums[comparison[n], 0 if is_better[n] else 1] += told
    known = torch.from_numpy(sums[np.unique(comparison[indices])])
    logprobs_A, reference_A, tokens_A = known.flatten(0, 1).T
    answers = Answers(logprobs_A, reference_A, tokens_A, torch.arange(2 * len(known)) % 2 == 0)
    ratios_A = answers.ratios_A
    return {
        "pairs": float(len(batch.pairs)),
        "groups_without_pair": float(groups - len(batch.pairs)),
        "pair_accuracy": float(pair_formula(loss)(answers).is_right_P.double().mean()),
        "pair_margin": float((ratios_A[0::2] - ratios_A[1::2]).mean()),
    }


def numbered(names: Sequence[object]) -> NDArray[np.int64]:
    """Equal names get equal numbers, counted from 0 in order of appearance."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64)


def turns_of(samples: Sequence[Sample], flat: FlatSequences, num_trained: int) -> Turns:
    """The turns of all samples; the first `num_trained` are trained on, the others only count.

    Two turns of a group are in one state if the same tokens stand before them: the whole prompt,
    or what came between the turn before and this one. Raises TrainingStopped for a sample that
    says what another number of turns earned.
    """
    before = np.concatenate([[False], flat.trained[:-1]])
    before[flat.starts] = False  # a sample's first turn does not go on from the sample before
    begins, ends = flat.trained & ~before, ~flat.trained & before
    sequence = np.repeat(np.arange(len(flat.starts)), flat.lengths)
    places = np.flatnonzero(begins)
    of_sample = sequence[places]
    # An observation begins where the turn before ended, or with its sample.
    ended = np.maximum.accumulate(np.where(ends, np.arange(len(ends)), -1))
    since = np.maximum(ended[places], flat.starts[of_sample])
    tokens, numbers = flat.tokens, dict[tuple[str, bytes], int]()
    states = [
        numbers.setdefault((samples[n].group_id, tokens[start:end].tobytes()), len(numbers))
        for n, start, end in zip(of_sample.tolist(), since.tolist(), places.tolist(), strict=True)
    ]
    turns = (np.cumsum(begins) - 1)[flat.trained]
    only_counts = sequence[flat.trained] >= num_trained
    return Turns(
        turn_R=torch.from_numpy(turns[~only_counts]),
        sequence_U=torch.from_numpy(of_sample),
        shares_U=torch.tensor(_shares(samples, np.bincount(of_sample)), dtype=torch.float64),
        state_U=torch.tensor(states),
        turn_M=torch.from_numpy(turns[only_counts]),
    )


def _shares(samples: Sequence[Sample], counts: np.ndarray) -> list[float]:
    """Return what each turn earned; 0 where nobody said."""
    shares: list[float] = []
    for sample, count in zip(samples, counts.tolist(), strict=False):
        if sample.turn_rewards and len(sample.turn_rewards) != count:
            raise TrainingStopped(
                f"rollout {sample.rollout_id} of {sample.problem_id} has {count} turns, and its"
                f" reward says what {len(sample.turn_rewards)} of them earned"
            )
        shares += sample.turn_rewards or [0.0] * count
    return shares


def components_of(samples: Sequence[Sample]) -> Components:
    """Scores and weights of the rewards with a weight; a negative one turns the score's sign. One
    that is `only_right`, as some rollouts do not have it, counts for those alone that do.

    A rollout that broke a protocol or a rule has of each at most the least of its group. Raises
    TrainingStopped where rollouts do not say their rewards, or have one alone.
    """
    of_group = defaultdict[str, dict[str, float]](dict)
    for sample in samples:
        if not sample.reward_weights and sample.status is not Status.MALFORMED:
            raise TrainingStopped(
                f"rollout {sample.rollout_id} of {sample.problem_id} does not say what each reward"
                " gave it, as its advantage needs; sample it again, or choose the advantage `group`"
            )
        weighted = {name: weight for name, weight in sample.reward_weights.items() if weight}
        of_group[sample.group_id] |= weighted
    names = list(dict.fromkeys(name for weights in of_group.values() for name in weights))
    if len(names) == 1 and len({name for s in samples for name in s.reward_weights}) == 1:
        raise TrainingStopped(
            f"{names[0]} is the rubric's only reward, and the advantage compares several by"
            " themselves; add one, or choose the advantage `group`"
        )
    scores, weights = list[torch.Tensor](), list[list[float]]()
    counts = torch.ones(len(samples), len(names), dtype=torch.bool)
    for place, name in enumerate(names):
        of_each = [of_group[sample.group_id].get(name, 0.0) for sample in samples]
        # No reward says anything of a broken protocol: only of others it tells who was not asked.
        asked = [name in sample.rewards for sample in samples]
        if any(
            weight and not was and sample.status is not Status.MALFORMED
            for sample, weight, was in zip(samples, of_each, asked, strict=True)
        ):
            counts[:, place] = torch.tensor(asked)
        signed = [
            0.0 if sample.is_broken else sample.rewards.get(name, 0.0) * (-1 if weight < 0 else 1)
            for sample, weight in zip(samples, of_each, strict=True)
        ]
        scores_N, its = torch.tensor(signed, dtype=torch.float64), counts[:, place]
        counted = [sample for sample, each in zip(samples, its.tolist(), strict=True) if each]
        if counted:
            scores_N[its] = broken_last(counted, scores_N[its])
        scores.append(scores_N)
        weights.append([abs(weight) for weight in of_each])
    if not names:  # all broke the protocol: no rewards were asked
        return Components(*(torch.zeros(len(samples), 1, dtype=torch.float64) for _ in range(2)))
    weights_NC = torch.tensor(weights, dtype=torch.float64).T
    return Components(torch.stack(scores, 1), weights_NC, None if counts.all() else counts)
