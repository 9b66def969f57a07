"""The pairs of a step that a preference loss compares, e.g. each group's best and worst rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from engines.algorithms.advantages import Advantage, advantages
from engines.algorithms.inputs import StepTokens
from engines.types import Sample
from infra.errors import TrainingStopped

if TYPE_CHECKING:
    from engines.megatron.rl.rl_batch import RlBatch


def compared_samples(
    samples: Sequence[Sample], rewards_N: torch.Tensor, advantage: Advantage
) -> tuple[list[Sample], list[int]]:
    """The samples of all pairs, group by group, the better rollout's first; and how many each pair
    has. Raises TrainingStopped where there is no pair."""
    groups = numbered([s.group_id for s in samples])
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
        raise TrainingStopped(
            f"in none of the step's {len(set(groups.tolist()))} groups one rollout is better than"
            " another, so there is no pair to compare; look at the rewards, at `truncated` and at"
            " `overlong`"
        )
    sizes = np.unique(groups[order], return_counts=True)[1]
    return [samples[n] for n in order], sizes.tolist()


def pair_metrics(
    batch: RlBatch,
    logprobs: NDArray[np.float32],
    reference: NDArray[np.float32] | None,
    indices: NDArray[np.int64],
    groups: int,
) -> dict[str, float]:
    """What the policy says before its update of the pairs among the samples `indices`, by logprobs
    [T]; `groups`: how many the step has."""
    assert batch.pairs is not None
    comparison = batch.learned.comparison
    is_better = batch.rollouts == batch.rollouts[np.searchsorted(comparison, comparison)]
    margins = np.zeros(len(batch.pairs))
    for n in indices.tolist():
        places = batch.trained_in(n)
        of_reference = 0.0 if reference is None else reference[places].sum(dtype=np.float64)
        ratio = logprobs[places].sum(dtype=np.float64) - of_reference
        margins[comparison[n]] += ratio if is_better[n] else -ratio
    known = margins[np.unique(comparison[indices])]
    return {
        "pairs": float(len(batch.pairs)),
        "groups_without_pair": float(groups - len(batch.pairs)),
        "pair_accuracy": float((known > 0).mean()),
        "pair_margin": float(known.mean()),
    }


def numbered(names: Sequence[object]) -> NDArray[np.int64]:
    """Equal names get equal numbers, counted from 0 in order of appearance."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64)
