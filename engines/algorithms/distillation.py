"""On-policy distillation: the student samples, teachers say how likely each token is to them.

Axes: R trained tokens, N samples, K teachers or chosen vocabulary entries.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Direction = Literal["reverse", "forward"]


def distillation_advantages(
    teacher_logprobs_KR: Tensor,
    student_logprobs_R: Tensor,
    teacher_weights_NK: Tensor,
    sequence_R: Tensor,
    *,
    clip: float | None,
) -> Tensor:
    """[R] sum over teachers of weight x (teacher's - student's logprob), within +-clip.

    The sampled-token form: its policy gradient is that of -KL(student || teacher). One teacher a
    sample (weights 1 and 0, e.g. by domain) is MOPD (arXiv 2606.30406). No gradient.
    Example: logprobs -1 (teacher) and -3 (student) -> 2: the student should say it more often.
    """
    gap_KR = teacher_logprobs_KR - student_logprobs_R
    # A teacher that a sample does not listen to may not have scored it: NaN x 0 must be 0.
    weights_KR = teacher_weights_NK.T[:, sequence_R]
    advantages_R = torch.where(weights_KR > 0, gap_KR * weights_KR, 0.0).sum(0).detach()
    return advantages_R if clip is None else advantages_R.clamp(-clip, clip)


def top_k_divergence(
    student_logprobs_RK: Tensor, teacher_logprobs_RK: Tensor, *, direction: Direction
) -> Tensor:
    """[R] KL over the K chosen tokens and one outcome "any other token"; differentiable.

    reverse: KL(student || teacher), seeks one mode; forward: KL(teacher || student), covers all.
    The rest keeps it a KL: never negative, 0 only where student and teacher agree, and at most
    the KL over the whole vocabulary. The K tokens of a row must differ.
    Example: student 0.5, teacher 0.25 of one token, reverse: 0.5 ln 2 + 0.5 ln(0.5 / 0.75).
    """
    student = torch.cat([student_logprobs_RK, _rest(student_logprobs_RK)], 1)
    teacher = torch.cat([teacher_logprobs_RK, _rest(teacher_logprobs_RK)], 1)
    over, under = (student, teacher) if direction == "reverse" else (teacher, student)
    return (over.exp() * (over - under)).sum(1)


def _rest(logprobs_RK: Tensor) -> Tensor:
    """Logprob of "any other token", [R, 1]; not below 1e-7, where fp32 sums end."""
    return (1 - logprobs_RK.exp().sum(1, keepdim=True)).clamp(min=1e-7).log()
