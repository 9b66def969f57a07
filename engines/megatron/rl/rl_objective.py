"""The policy's loss of one mini-batch of an RL step, from a pack's scores. Axis: R rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.corrections import Opsm
from engines.algorithms.inputs import LossInputs
from engines.algorithms.losses import UNBIASED_KL, Kl, LossFunction
from engines.algorithms.parts import our_part
from engines.algorithms.spec import Algorithm
from engines.megatron.parallel import Layout
from engines.megatron.rl.teachers import TopTokens
from engines.megatron.train.objectives import MicroBatchLoss, stacked
from engines.megatron.train.pack import FlatSequences, Pack
from engines.types import Sample


@dataclass(frozen=True, slots=True)
class RlTargets:
    """What each token of a step is worth, fixed before its first update.

    Arrays are [T] float32, as flat as the sequences' tokens; only trained tokens are read.
    """

    engine_logprobs: NDArray[np.float32]
    old_logprobs: NDArray[np.float32]
    """of the policy that ratios are taken against"""
    advantages: NDArray[np.float32]
    weights: NDArray[np.float32] | None = None
    """of the correction; None: 1 everywhere"""
    reference: NDArray[np.float32] | None = None
    """logprobs of the reference model, if the loss reads them"""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    top: TopTokens | None = None
    """of the teachers, for the loss `divergence`"""


def temperature_of(samples: Sequence[Sample], algorithm: Algorithm) -> float | NDArray[np.float32]:
    """Return what logprobs are computed at: the one temperature that all samples were drawn at, or
    [N] each one's own; the algorithm's where a sample says none."""
    each = [s.temperature or algorithm.temperature for s in samples]
    return each[0] if len({*each}) == 1 else np.array(each, np.float32)


@dataclass(slots=True)
class RlObjective:
    """The policy loss of one mini-batch, with its correction, KL and entropy terms."""

    algorithm: Algorithm
    layout: Layout
    targets: RlTargets
    num_trained: NDArray[np.int64]
    """trained tokens of each sequence"""
    shares: NDArray[np.float32]
    """what a token's loss of each sequence is multiplied by"""
    units: NDArray[np.int64]
    """what each sequence adds to the denominator"""
    loss: LossFunction
    temperature: float | NDArray[np.float32]
    """see `temperature_of`"""
    pair: NDArray[np.int64] | None = None
    """of each sequence, for a loss of pairs"""
    seen: list[tuple[Pack, Tensor]] = field(default_factory=list[tuple[Pack, Tensor]])
    """packs and the trainer's logprobs on them, to compare with the engine's"""

    sums: ClassVar[tuple[str, ...]] = (
        *(
            "loss",
            "units",
            "tokens",
            "entropy",
            "ratio",
            "clip",
            "extreme",
            "kl",
            "reference_kl",
            "left",
        ),
    )
    peaks: ClassVar[tuple[str, ...]] = ("ratio",)

    @property
    def head(self) -> Mapping[str, Any]:
        return {
            "temperature": self.temperature,
            "has_entropy_loss": self.algorithm.entropy_bonus > 0,
            "compared": self.targets.top,
        }

    def total_units(self, flat: FlatSequences, indices: NDArray[np.int64]) -> int:
        return int(self.units[indices].sum())

    def part(self, pack: Pack, scores: Tensor) -> MicroBatchLoss:
        logprobs_R, entropies_R = scores[:2]
        tokens = self._inputs(pack, logprobs_R, scores[2:].t())
        policy = self.loss(tokens)
        loss_R, left_R = self._corrected(pack, tokens, policy.loss_R)
        reference_kl_R = self._reference_kl(tokens)
        if reference_kl_R is not None:
            loss_R = loss_R + self.algorithm.kl.coef * reference_kl_R
        if self.algorithm.entropy_bonus:
            loss_R = loss_R - self.algorithm.entropy_bonus * entropies_R
        loss = (loss_R * self._at(self.shares, pack.sequence_of_row, logprobs_R)).sum()
        logprobs = logprobs_R.detach()
        self.seen.append((pack, logprobs))
        log_ratio = tokens.log_ratio_R.detach()
        ratio = log_ratio.exp()
        # Context-parallel ranks share each sequence: the first one counts it.
        first = self.layout.cp_rank == 0
        units = int(self.units[pack.sequences[: pack.num_sequences]].sum()) if first else 0
        sums = stacked(
            loss,
            units,
            len(pack.targets),
            entropies_R.sum(),
            ratio.sum(),
            policy.is_clipped_R.sum(),
            tokens.is_extreme_R.sum(),
            (ratio - 1 - log_ratio).sum(),
            0 if reference_kl_R is None else reference_kl_R.sum(),
            0 if left_R is None else left_R.sum(),
        )
        return MicroBatchLoss(loss, units, sums, stacked(_peak(ratio)))

    def _inputs(self, pack: Pack, logprobs_R: Tensor, compared_RK: Tensor) -> LossInputs:
        """`compared_RK`: logprobs of the teachers' likeliest tokens."""
        targets, top = self.targets, self.targets.top
        return LossInputs(
            logprobs_R=logprobs_R,
            old_logprobs_R=self._at(targets.old_logprobs, pack.targets, logprobs_R),
            advantages_R=self._at(targets.advantages, pack.targets, logprobs_R),
            segment_R=torch.from_numpy(pack.segment_of_row).to(logprobs_R.device),
            num_trained_B=self._at(self.num_trained, pack.sequences, logprobs_R),
            cp_group=self.layout.cp_group if self.layout.parallel.cp > 1 else None,
            teacher=top.compared(pack, compared_RK) if top else None,
            reference_R=self._reference(pack, logprobs_R),
            pair_B=self._pairs(pack, logprobs_R),
        )

    def _reference(self, pack: Pack, like: Tensor) -> Tensor | None:
        reference = self.targets.reference
        return None if reference is None else self._at(reference, pack.targets, like)

    def _pairs(self, pack: Pack, like: Tensor) -> Tensor | None:
        """[B] the pair of each of the pack's sequences; None where no pairs are compared."""
        if self.pair is None:
            return None
        _, numbers = np.unique(self.pair[pack.sequences], return_inverse=True)
        return torch.from_numpy(numbers).to(like.device)

    def _corrected(
        self, pack: Pack, tokens: LossInputs, loss_R: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The loss under the correction, and which tokens off-policy masking left out."""
        targets = self.targets
        if targets.weights is not None:
            loss_R = loss_R * self._at(targets.weights, pack.targets, loss_R)
        rule = next((r for r in self.algorithm.correction.reject if isinstance(r, Opsm)), None)
        if rule is None:
            return loss_R, None
        engine_R = self._at(targets.engine_logprobs, pack.targets, loss_R)
        left_R = our_part(Opsm.code)(tokens, engine_R, delta=rule.delta)
        return loss_R.masked_fill(left_R, 0.0), left_R

    def _reference_kl(self, tokens: LossInputs) -> Tensor | None:
        """[R] the estimate that the loss holds; None without one."""
        kl, reference_R = self.algorithm.kl, tokens.reference_R
        if reference_R is None or not kl.coef:
            return None
        if kl.unbiased:
            unbiased_kl = our_part(UNBIASED_KL)
            return unbiased_kl(tokens.logprobs_R, tokens.old_logprobs_R, reference_R, kl.estimator)
        return our_part(Kl.code)(tokens.logprobs_R, reference_R, kl.estimator)

    @staticmethod
    def _at(values: NDArray[Any], places: NDArray[np.int64], like: Tensor) -> Tensor:
        return torch.from_numpy(values[places]).to(like.device)


def _peak(values_R: Tensor) -> Tensor:
    return values_R.max() if len(values_R) else values_R.new_zeros(())
