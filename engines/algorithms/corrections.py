"""What an engine that is not the trainer costs, how it is made up for, and how it is measured.

Weights and rejection are separate: a weight multiplies a token's loss, a rejection makes it 0.
Rejected tokens stay in every denominator, so rejecting never makes the others weigh more. Weights,
bands and vetoes are computed once, over the step's whole batch, before the first update: no packing
or layout can change them. Ratios have three levels, with d = trainer's - engine's logprob:

    token       exp(d_t)                    of each token
    sequence    exp(sum of d)               of the whole sequence, at each of its tokens
    geometric   exp(mean of d)              the same, per token: free of the length

Axes: R trained tokens, N samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, model_validator

from engines.algorithms.inputs import LossInputs
from engines.algorithms.parts import Part, PartWithCode, Share
from engines.algorithms.statistics import bounded

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence", "geometric"]

QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}


class Weight(PartWithCode):
    """Each token's loss times trainer's / engine's probability, within bounds (TIS)."""

    code: ClassVar[str] = "engines.algorithms.corrections:corrected"
    level: Level = "token"
    """the token's own ratio, that of the whole sequence, or its geometric mean per token"""
    low: float = Field(default=0.0, ge=0)
    high: PositiveFloat | None = 2.0
    """None: not truncated"""
    normalize: bool = False
    """divide by the mean over the step's batch, so that the loss keeps its scale"""

    @model_validator(mode="after")
    def _ordered(self) -> Weight:
        if self.high is not None and self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class Band(PartWithCode):
    """Rejects where the ratio leaves [low, high]: IcePop by token, MIS by sequence."""

    code: ClassVar[str] = "engines.algorithms.corrections:corrected"
    kind: Literal["ratio"]
    level: Level = "token"
    low: float = Field(default=0.5, ge=0)
    high: PositiveFloat = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> Band:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class Veto(PartWithCode):
    """Rejects a sequence if the ratio of any of its tokens is below a floor."""

    code: ClassVar[str] = "engines.algorithms.corrections:corrected"
    kind: Literal["veto"]
    floor: Share = 1e-4


class Opsm(PartWithCode):
    """Off-policy sequence masking: rejects tokens with A < 0 in sequences far from the policy."""

    code: ClassVar[str] = "engines.algorithms.corrections:off_policy_sequences"
    kind: Literal["opsm"]
    delta: PositiveFloat = 1e-4
    """a sequence is far if its mean of engine's - current logprob is above this, in nats"""


Rejection = Annotated[Band | Veto | Opsm, Field(discriminator="kind")]


class Correction(Part):
    """Importance weights and rejections; each may be used alone; none by default."""

    weight: Weight | None = None
    reject: list[Rejection] = Field(default_factory=list[Band | Veto | Opsm])


@dataclass(frozen=True, slots=True)
class Corrected:
    weights_R: Tensor
    """factor of each token's policy loss; 0 where it is rejected"""
    metrics: dict[str, float]


def corrected(
    spec: Correction, trainer_R: Tensor, engine_R: Tensor, sequence_R: Tensor, num: int
) -> Corrected:
    """Weights from the old logprobs of both engines, [R] each."""
    import torch

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
    import torch

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
    import torch

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


def importance_ratio(log_ratio_R: Tensor, sequence_R: Tensor, num: int, level: Level) -> Tensor:
    """[R] ratio at this level. Example: token ratios 2, 2 -> sequence 4, geometric 2 at both."""
    import torch

    from engines.algorithms.sequence_sums import sequence_sums

    if level == "token":
        return bounded(log_ratio_R).exp()
    sums_N = sequence_sums(log_ratio_R, sequence_R, num, group=None)
    if level == "geometric":
        # 0 / 0 of a sample without tokens is given to none.
        sums_N = sums_N / torch.bincount(sequence_R, minlength=num)
    return bounded(sums_N).exp()[sequence_R]


def weight_metrics(weights_R: Tensor, ratio_R: Tensor, spec: Weight) -> dict[str, float]:
    bounded_R = ratio_R.clamp(spec.low, spec.high)
    return {
        "weight_mean": _mean(weights_R),
        "weight_max": float(weights_R.max()) if len(weights_R) else 0.0,
        "weight_truncated_share": _mean((bounded_R != ratio_R).to(weights_R.dtype)),
    }


def _mean(values_R: Tensor) -> float:
    return float(values_R.mean()) if len(values_R) else 0.0


def off_policy_sequences(tokens: LossInputs, engine_logprobs_R: Tensor, *, delta: float) -> Tensor:
    """[R] bool: tokens of negative advantage in a sequence that has drifted (DeepSeek-V3.2).

    A sequence has drifted when the mean of engine's - present logprob over its trained tokens
    passes `delta`: the policy has long left it, and pushing it further down teaches nothing.
    """
    import torch

    with torch.no_grad():
        drift_R = tokens.sequence_mean(engine_logprobs_R - tokens.logprobs_R)
        return (tokens.advantages_R < 0) & (drift_R > delta)


def mismatch_metrics(trainer_R: Tensor, engine_R: Tensor, lag_R: Tensor) -> dict[str, float]:
    """Metrics over R tokens; `lag_R` is the policy's version minus the one that sampled the token.

    With d = trainer's - engine's logprob: `mismatch_mean` and `_max` of |d|; `mismatch_k1` and
    `_k3` estimate KL(engine || trainer) in nats a token; `mismatch_ess` is the effective share of
    the sample under weights exp(d), 1 when they are equal; `mismatch_ratio_p01`... are quantiles
    of exp(d). In exp(d), d is held within +-20. Where tokens are of older versions, also share,
    mean |d|, k1 and k3 of the tokens of each lag.
    """
    if not len(trainer_R):
        return {}
    log_ratio_R = trainer_R.double() - engine_R.double()
    ratio_R, distance_R = bounded(log_ratio_R).exp(), log_ratio_R.abs()
    k3_R = ratio_R - 1 - log_ratio_R
    values = {
        "mismatch_mean": float(distance_R.mean()),
        "mismatch_max": float(distance_R.max()),
        "mismatch_k1": -float(log_ratio_R.mean()),
        "mismatch_k3": float(k3_R.mean()),
        "mismatch_ess": effective_share(ratio_R),
        **{f"mismatch_ratio_{name}": value for name, value in quantiles(ratio_R).items()},
        "lag_mean": float(lag_R.double().mean()),
        "lag_max": float(lag_R.max()),
    }
    for lag in lag_R.unique().tolist() if lag_R.any() else []:
        is_here_R = lag_R == lag
        values[f"lag{lag}_share"] = float(is_here_R.double().mean())
        values[f"lag{lag}_mean"] = float(distance_R[is_here_R].mean())
        values[f"lag{lag}_k1"] = -float(log_ratio_R[is_here_R].mean())
        values[f"lag{lag}_k3"] = float(k3_R[is_here_R].mean())
    return values


def effective_share(weights_R: Tensor) -> float:
    """Kish's effective sample size over the sample's size: (sum w)^2 / (R sum w^2), 0 to 1.

    Example: weights 1, 1, 4 -> 36 / (3 x 18) = 0.667.
    """
    # Scaled by the largest first: the square of a large ratio would overflow.
    largest = weights_R.max()
    if largest == 0:
        return 0.0
    scaled_R = weights_R / largest
    return float(scaled_R.sum()) ** 2 / (len(weights_R) * float(scaled_R.square().sum()))


def quantiles(values_R: Tensor) -> dict[str, float]:
    """QUANTILES of the values, between neighbours by linear interpolation.

    torch.quantile refuses more than 2^24 values. Example: p50 of 1, 2, 4, 8 -> 3.
    """
    import torch

    ordered_R = values_R.sort().values
    place = torch.tensor(list(QUANTILES.values()), dtype=torch.float64) * (len(ordered_R) - 1)
    below, above = place.floor().long(), place.ceil().long()
    found = torch.lerp(ordered_R[below], ordered_R[above], (place - below).to(ordered_R.dtype))
    return dict(zip(QUANTILES, found.tolist(), strict=True))
