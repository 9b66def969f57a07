"""Off-policy sequence masking: bad sequences far from the policy are not pushed down further."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.algorithms.inputs import LossInputs


def off_policy_sequences(tokens: LossInputs, engine_logprobs_R: Tensor, *, delta: float) -> Tensor:
    """[R] bool: tokens of negative advantage in a sequence that has drifted (DeepSeek-V3.2).

    A sequence has drifted when the mean of engine's - present logprob over its trained tokens
    passes `delta`: the policy has long left it, and pushing it further down teaches nothing.
    """
    with torch.no_grad():
        drift_R = tokens.sequence_mean(engine_logprobs_R - tokens.logprobs_R)
        return (tokens.advantages_R < 0) & (drift_R > delta)
