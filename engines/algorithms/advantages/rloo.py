"""RLOO's advantages."""

from __future__ import annotations

from torch import Tensor

from engines.algorithms.advantages.rollouts import of_rollouts
from engines.algorithms.inputs import StepTokens
from engines.algorithms.statistics.leave_one_out import leave_one_out_advantages


def advantages(tokens: StepTokens) -> Tensor:
    return of_rollouts(tokens, leave_one_out_advantages)
