"""GRPO's and Dr.GRPO's advantages."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from engines.algorithms.advantages.rollouts import of_rollouts
from engines.algorithms.inputs import StepTokens
from engines.algorithms.statistics.group_relative import group_advantages


def advantages(tokens: StepTokens, *, std: bool) -> Tensor:
    return of_rollouts(tokens, partial(group_advantages, should_normalize_std=std))
