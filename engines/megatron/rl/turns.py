"""The turns of a step's samples: where each begins, what it answers, what it earned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engines.algorithms.inputs import Turns
from engines.megatron.train.pack import FlatSequences
from engines.types import Sample
from infra.errors import TrainingStopped


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
    """What each turn earned; 0 where nobody said."""
    shares: list[float] = []
    for sample, count in zip(samples, counts.tolist(), strict=False):
        if sample.turn_rewards and len(sample.turn_rewards) != count:
            raise TrainingStopped(
                f"rollout {sample.rollout_id} of {sample.problem_id} has {count} turns, and its"
                f" reward says what {len(sample.turn_rewards)} of them earned"
            )
        shares += sample.turn_rewards or [0.0] * count
    return shares
