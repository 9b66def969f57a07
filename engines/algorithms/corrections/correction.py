"""What an engine that is not the trainer costs, and how it is made up for.

Weights and rejection are separate: a weight multiplies a token's loss, a rejection makes it 0.
Rejected tokens stay in every denominator, so rejecting never makes the others weigh more. All is
computed once, over the step's whole batch, before the first update: no packing or layout can
change it. Axes: R trained tokens, N samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engines.algorithms.corrections.importance import importance_ratio

if TYPE_CHECKING:
    # What a person writes is pydantic; the functions need torch alone.
    from engines.algorithms.choices import Band, Correction, Veto, Weight


@dataclass(frozen=True, slots=True)
class Corrected:
    weights_R: Tensor
    """factor of each token's policy loss; 0 where it is rejected"""
    metrics: dict[str, float]


def corrected(
    spec: Correction, trainer_R: Tensor, engine_R: Tensor, sequence_R: Tensor, num: int
) -> Corrected:
    """Weights from the old logprobs of both engines, [R] each."""
    log_ratio_R = trainer_R - engine_R
    weights_R, metrics = torch.ones_like(log_ratio_R), dict[str, float]()
    if spec.weight is not None:
        ratio_R = importance_ratio(log_ratio_R, sequence_R, num, spec.weight.level)
        weights_R = importance_weights(ratio_R, sequence_R, spec.weight)
        metrics |= weight_metrics(weights_R, ratio_R, spec.weight)
    # Off-policy masking looks at the present policy: it belongs to the loss, not here.
    before = [r for r in spec.reject if r.kind != "opsm"]
    kept_R = kept(before, log_ratio_R, sequence_R, num)
    if before:
        metrics["rejected_share"] = 1 - _mean(kept_R.to(log_ratio_R.dtype))
    return Corrected(weights_R * kept_R, metrics)


def importance_weights(ratio_R: Tensor, sequence_R: Tensor, spec: Weight) -> Tensor:
    """[R] the ratio within [low, high]; divided by its mean over the batch if it is normalised.

    That mean is over tokens at token level and over samples at the others, where a long sample
    must not count more. Truncated weights are TIS (Yao et al. 2025).
    Example: ratios 0.5, 4 truncated at 2 -> 0.5, 2; normalised by 1.25 -> 0.4, 1.6.
    """
    weights_R = ratio_R.clamp(spec.low, spec.high)
    if not spec.normalize or not len(weights_R):
        return weights_R
    if spec.level == "token":
        return weights_R / weights_R.mean()
    first_R = torch.ones_like(sequence_R, dtype=torch.bool)
    first_R[1:] = sequence_R[1:] != sequence_R[:-1]
    return weights_R / weights_R[first_R].mean()


def kept(
    rejections: Sequence[Band | Veto], log_ratio_R: Tensor, sequence_R: Tensor, num: int
) -> Tensor:
    """[R] bool: tokens that no rejection takes away."""
    kept_R = torch.ones_like(sequence_R, dtype=torch.bool)
    for rejection in rejections:
        if rejection.kind == "veto":
            unlikely_R = (log_ratio_R.exp() < rejection.floor).to(log_ratio_R.dtype)
            count_N = log_ratio_R.new_zeros(num).index_add(0, sequence_R, unlikely_R)
            kept_R &= (count_N == 0)[sequence_R]
        else:
            ratio_R = importance_ratio(log_ratio_R, sequence_R, num, rejection.level)
            kept_R &= (ratio_R >= rejection.low) & (ratio_R <= rejection.high)
    return kept_R


def weight_metrics(weights_R: Tensor, ratio_R: Tensor, spec: Weight) -> dict[str, float]:
    bounded_R = ratio_R.clamp(spec.low, spec.high)
    return {
        "weight_mean": _mean(weights_R),
        "weight_max": float(weights_R.max()) if len(weights_R) else 0.0,
        "weight_truncated_share": _mean((bounded_R != ratio_R).to(weights_R.dtype)),
    }


def _mean(values_R: Tensor) -> float:
    return float(values_R.mean()) if len(values_R) else 0.0
