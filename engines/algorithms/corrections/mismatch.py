"""How much the trainer's logprobs of a batch differ from those of the engine that sampled it."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.algorithms.statistics.ratios import bounded

QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}


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
    ordered_R = values_R.sort().values
    place = torch.tensor(list(QUANTILES.values()), dtype=torch.float64) * (len(ordered_R) - 1)
    below, above = place.floor().long(), place.ceil().long()
    found = torch.lerp(ordered_R[below], ordered_R[above], (place - below).to(ordered_R.dtype))
    return dict(zip(QUANTILES, found.tolist(), strict=True))
