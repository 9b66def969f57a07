"""On-policy distillation: the student samples, teachers say how likely each token is to them.

Axes: R trained tokens, N samples, K teachers or chosen vocabulary entries.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
