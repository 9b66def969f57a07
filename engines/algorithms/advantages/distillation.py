"""On-policy distillation: how much likelier a token is to the teachers than to the student."""

from __future__ import annotations

from torch import Tensor

from engines.algorithms.distillation import distillation_advantages
from engines.algorithms.inputs import StepTokens


def advantages(tokens: StepTokens, *, clip: float | None) -> Tensor:
    if tokens.teacher_logprobs_KR is None or tokens.teacher_weights_NK is None:
        raise ValueError("distillation needs teachers' logprobs and weights")
    return distillation_advantages(
        tokens.teacher_logprobs_KR,
        tokens.logprobs_R,
        tokens.teacher_weights_NK,
        tokens.sequence_R,
        clip=clip,
    )
