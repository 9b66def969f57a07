"""What one training step is made from, on its way from the loop to the ranks, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from engines.types import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engines.algorithms.spec import Algorithm

Values: TypeAlias = "NDArray[np.float32]"
"""a number for each token of a step's trainable samples, end to end"""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One batch of rollouts and how to learn from it; later calls of a step know more of it.

    Example: StepInputs(samples, Algorithm(), gate=True, version=3)
    """

    samples: Sequence[Sample]
    algorithm: Algorithm
    gate: bool = False
    """the engine must agree with the trainer on tokens that the present weights wrote"""
    version: int | None = None
    """the policy's; None: the newest sample's"""
    values: Values | None = None
    """the critic's, from before the step; where the advantage asks for them"""
    token_rewards: Values | None = None
    """what the KL term adds to each token's reward, where it is placed there"""
    teacher_logprobs: Mapping[int, Values] = field(default_factory=dict[int, "Values"])
    """by position in `samples`, of those whose teachers are served: the teacher's logprob of each
    token; 0 before the first trained one"""
    shown: Sequence[int] = ()
    """positions of the samples that a person will look at: the step hands their logprobs back"""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """What the ranks made of `StepInputs`."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])
    logprobs: Mapping[int, Values] = field(default_factory=dict[int, "Values"])
    """by position in `samples`, of those of `shown` that have them: the trainer's logprob of each
    token before any update, 0 where nothing is trained"""
