"""How far the trainer's old policy is from the engine that sampled: ratios at three levels.

    token       exp(d_t)                    of each token
    sequence    exp(sum of d)               of the whole sequence, at each of its tokens
    geometric   exp(mean of d)              the same, per token: free of the length

with d = trainer's - engine's logprob. Axes: R trained tokens, N samples.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from engines.algorithms.statistics.ratios import bounded
from engines.algorithms.statistics.sequence_sums import sequence_sums

Level = Literal["token", "sequence", "geometric"]


def importance_ratio(log_ratio_R: Tensor, sequence_R: Tensor, num: int, level: Level) -> Tensor:
    """[R] ratio at this level. Example: token ratios 2, 2 -> sequence 4, geometric 2 at both."""
    if level == "token":
        return bounded(log_ratio_R).exp()
    sums_N = sequence_sums(log_ratio_R, sequence_R, num, group=None)
    if level == "geometric":
        # 0 / 0 of a sample without tokens is given to none.
        sums_N = sums_N / torch.bincount(sequence_R, minlength=num)
    return bounded(sums_N).exp()[sequence_R]
