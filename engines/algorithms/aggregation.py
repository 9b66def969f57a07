"""Which samples count, and how the losses of their tokens become the loss of a mini-batch.

| sample | its reward | its tokens |
|---|---|---|
| completed, malformed | counts in its group | trained |
| truncated | counts | trained, or with `truncated: mask` left out of loss and denominators |
| aborted, failed | does not count | left out |
| no trained token (all masked, or an empty response) | does not count | there are none |
| of a group of equal rewards, or alone in its group | counts | trained with advantage 0, in the
  denominators; the rollout loop drops such groups before, so that they cost no pass |
| staler than `max_staleness` | never arrives: the rollout buffer never hands it out | |
| rejected by a correction | counts | loss 0, stays in the denominators |

A mini-batch is spread over micro-batches and ranks, so a mean is a weighted sum here and a count
of units there: sum(weight x loss) over all parts, divided by the sum of all parts' units. Weights
and units are those of the whole mini-batch, computed once before it is cut. Axis: N samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt

from engines.algorithms.parts import Part
from engines.types import TRAINABLE, Sample, Status

if TYPE_CHECKING:
    from torch import Tensor

Mean = Literal["token_mean", "sequence_mean", "rollout_mean", "constant"]


class TokenMean(Part):
    """Over all trained tokens of the mini-batch."""

    kind: Literal["token_mean"]


class SequenceMean(Part):
    """Over rollouts, of the mean over its samples of each one's mean over its tokens."""

    kind: Literal["sequence_mean"]


class RolloutMean(Part):
    """Over rollouts, of each one's mean over the tokens of all its samples."""

    kind: Literal["rollout_mean"]


class ConstantMean(Part):
    """Over rollouts, of the sum over tokens divided by a constant (Dr.GRPO)."""

    kind: Literal["constant"]
    length: PositiveInt | None = None
    """tokens; None: the rollout's token budget"""


Aggregation = Annotated[
    TokenMean | SequenceMean | RolloutMean | ConstantMean, Field(discriminator="kind")
]


@dataclass(frozen=True, slots=True)
class Shares:
    weight_N: Tensor
    """float64: what the loss of each trained token of the sample is multiplied by"""
    units_N: Tensor
    """long: what the sample adds to the denominator"""


def shares(
    mean: Mean, num_trained_N: Tensor, rollout_N: Tensor, lengths_N: Tensor | None = None
) -> Shares:
    """The shares of a mini-batch's samples; every sample has a trained token.

    token_mean      weight 1; a unit is a token
    sequence_mean   weight 1 / (tokens of the sample x samples of its rollout)
    rollout_mean    weight 1 / tokens of all samples of its rollout
    constant        weight 1 / `lengths_N` (Dr.GRPO, arXiv 2503.20783)
    In the last three a unit is a rollout: a generation attempt counts once, however many samples
    it yielded.
    Example: samples of 1 and 3 tokens, sequence_mean of two rollouts -> weights 1, 1/3 and
    units 1, 1; of one rollout -> weights 1/2, 1/6 and units 1, 0.
    """
    import torch

    ones_N = torch.ones_like(num_trained_N)
    if mean == "token_mean":
        return Shares(ones_N.double(), num_trained_N)
    numbers, member_N, siblings = rollout_N.unique(return_inverse=True, return_counts=True)
    if mean == "sequence_mean":
        weight_N = 1 / (num_trained_N * siblings[member_N]).double()
    elif mean == "constant":
        if lengths_N is None:
            raise ValueError("the constant mean needs the samples' lengths")
        weight_N = 1 / lengths_N.double()
    else:
        tokens = num_trained_N.new_zeros(len(numbers)).index_add(0, member_N, num_trained_N)
        weight_N = 1 / tokens.double()[member_N]
    return Shares(weight_N, _is_first(member_N, len(numbers)).long())


def _is_first(member_N: Tensor, num: int) -> Tensor:
    """[N] bool: whether the sample is the first of its rollout; that one counts it."""
    import torch

    place_N = torch.arange(len(member_N))
    first = torch.full((num,), len(member_N)).scatter_reduce(0, member_N, place_N, "amin")
    return first[member_N] == place_N


def counts(sample: Sample) -> bool:
    """Return whether its reward enters its group's statistics."""
    # Nothing predicts a first token, so a mask on it alone trains nothing.
    return sample.status in TRAINABLE and bool(sample.loss_mask[1:].any())


def trains(sample: Sample, truncated: Literal["train", "mask"]) -> bool:
    """Return whether its tokens are trained on."""
    return counts(sample) and not (truncated == "mask" and sample.status is Status.TRUNCATED)
