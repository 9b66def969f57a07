"""What each reward of a rubric says of a step's samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from engines.algorithms.inputs import Components
from engines.megatron.rl.pairs import broken_last
from engines.types import Sample, Status
from infra.errors import TrainingStopped


def components_of(samples: Sequence[Sample]) -> Components:
    """Scores and weights of the rewards with a weight; a negative one turns the score's sign. One
    that a rollout was not asked about, as it was cut off or wrong, gave it 0.

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
    for name in names:
        of_each = [of_group[sample.group_id].get(name, 0.0) for sample in samples]
        signed = [
            0.0 if sample.is_broken else sample.rewards.get(name, 0.0) * (-1 if weight < 0 else 1)
            for sample, weight in zip(samples, of_each, strict=True)
        ]
        scores.append(broken_last(samples, torch.tensor(signed, dtype=torch.float64)))
        weights.append([abs(weight) for weight in of_each])
    if not names:  # all broke the protocol: no rewards were asked
        return Components(*(torch.zeros(len(samples), 1, dtype=torch.float64) for _ in range(2)))
    return Components(torch.stack(scores, 1), torch.tensor(weights, dtype=torch.float64).T)
