"""Losses that learn from which answer is better: their settings, and their formulas.

A pair loss sees answers in turn, better, worse, better, worse; `kto` sees each alone. Axes: A
answers, P comparisons (pairs, or single answers). In the formulas, r is an answer's log ratio
log p(answer) - log p_reference(answer), summed over its trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat

from engines.algorithms.parts import our_part
from infra.config import Choice

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Answers:
    """What the trainer and the reference say of a micro-batch's answers."""

    logprobs_A: Tensor
    """sum over the answer's trained tokens"""
    reference_A: Tensor
    """the same of the model that the stage began with; 0 where a loss has no reference"""
    tokens_A: Tensor
    """number of these tokens"""
    is_good_A: Tensor
    """bool: of a pair, the better one; of one alone, what its row says"""
    baseline: float = 0.0
    """of `kto`: the estimate of KL(policy || reference) that a log ratio is compared with"""

    @property
    def ratios_A(self) -> Tensor:
        return self.logprobs_A - self.reference_A

    @property
    def means_A(self) -> Tensor:
        """Mean logprob of the answer's tokens."""
        return self.logprobs_A / self.tokens_A


@dataclass(frozen=True, slots=True)
class Compared:
    losses_P: Tensor
    rewards_A: Tensor
    """what the loss takes for each answer's reward"""
    is_right_P: Tensor
    """bool: whether the rewards say what the data say"""


class Dpo(Choice):
    """Direct preference optimisation, with a reference (or reference-free)."""

    code: ClassVar[str] = "engines.algorithms.preference_losses:dpo_loss"
    kind: Literal["dpo"] = "dpo"
    beta: PositiveFloat = 0.1
    """how much a nat away from the reference is worth; larger stays closer to it"""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """share of the pairs that are thought to be the wrong way round"""
    reference_free: bool = False
    """leave the reference out, as if it found all answers equally likely"""
    length_normalised: bool = False
    """compare log ratios a token; `beta` is then 5 to 20"""


def dpo_loss(
    answers: Answers,
    *,
    beta: float,
    label_smoothing: float,
    reference_free: bool,
    length_normalised: bool,
) -> Compared:
    """-(1 - s) log sigmoid(beta (r_better - r_worse)) - s log sigmoid(-beta (r_better - r_worse)).

    Rafailov et al. 2023 (arXiv 2305.18290), eq. 7. Label smoothing s: Mitchell 2023, "A note on DPO
    with noisy preferences". Log ratios a token: Lambert et al. 2024 (Tulu 3, arXiv 2411.15124).
    Example: r 2 and -1, beta 0.1 -> -log sigmoid(0.3) = 0.55436.
    """
    from torch.nn.functional import logsigmoid

    scores_A = answers.logprobs_A if reference_free else answers.ratios_A
    rewards_A = beta * (scores_A / answers.tokens_A if length_normalised else scores_A)
    margin_P = _margins(rewards_A)
    losses_P = -logsigmoid(margin_P)
    if label_smoothing:
        losses_P = (1 - label_smoothing) * losses_P - label_smoothing * logsigmoid(-margin_P)
    return Compared(losses_P, rewards_A, margin_P > 0)


class Ipo(Choice):
    """Identity preference optimisation: the margin is drawn to a number, and no further."""

    code: ClassVar[str] = "engines.algorithms.preference_losses:ipo_loss"
    kind: Literal["ipo"]
    beta: PositiveFloat = 0.1
    """the paper's tau: log ratios are drawn 1 / (2 beta) apart"""
    length_normalised: bool = True
    """compare log ratios a token, as the paper's authors did"""


def ipo_loss(answers: Answers, *, beta: float, length_normalised: bool) -> Compared:
    """(r_better - r_worse - 1 / (2 beta))^2.

    Azar et al. 2023 (arXiv 2310.12036), eq. 17.
    Example: r 2 and -1, beta 0.1 -> (3 - 5)^2 = 4.
    """
    ratios_A = answers.ratios_A
    scores_A = ratios_A / answers.tokens_A if length_normalised else ratios_A
    margin_P = _margins(scores_A)
    return Compared((margin_P - 1 / (2 * beta)) ** 2, beta * scores_A, margin_P > 0)


class Simpo(Choice):
    """Simple preference optimisation: mean logprobs, a margin, no reference."""

    code: ClassVar[str] = "engines.algorithms.preference_losses:simpo_loss"
    kind: Literal["simpo"]
    beta: PositiveFloat = 2.0
    gamma: NonNegativeFloat = 1.0
    """by how much the better answer's reward is to be larger"""


def simpo_loss(answers: Answers, *, beta: float, gamma: float) -> Compared:
    """-log sigmoid(beta (mean logprob of the better - of the worse) - gamma).

    Meng et al. 2024 (arXiv 2405.14734), eq. 6.
    Example: means -1 and -2, beta 2, gamma 1 -> -log sigmoid(1) = 0.31326.
    """
    from torch.nn.functional import logsigmoid

    rewards_A = beta * answers.means_A
    margin_P = _margins(rewards_A)
    return Compared(-logsigmoid(margin_P - gamma), rewards_A, margin_P > 0)


class Orpo(Choice):
    """Odds ratio preference optimisation: supervised learning of the better answer, and a penalty
    on the odds of the worse one; no reference."""

    code: ClassVar[str] = "engines.algorithms.preference_losses:orpo_loss"
    kind: Literal["orpo"]
    weight: PositiveFloat = 0.1
    """of the odds ratio beside the better answer's likelihood: the paper's lambda"""


def orpo_loss(answers: Answers, *, weight: float) -> Compared:
    """-m_better - weight x log sigmoid(log odds(m_better) - log odds(m_worse)), where m is a mean
    logprob and odds(m) = exp(m) / (1 - exp(m)).

    Hong et al. 2024 (arXiv 2403.07691), eq. 4 to 7.
    Example: means log 0.5 and log 0.2, weight 0.1 -> 0.69315 + 0.1 x 0.22314 = 0.71546.
    """
    import torch
    from torch.nn.functional import logsigmoid

    means_A = answers.means_A
    # A probability of 1 has no odds: an answer that is certain counts as almost certain.
    log_not_A = torch.log(-torch.expm1(means_A.clamp(max=-1e-7)))
    margin_P = _margins(means_A - log_not_A)
    losses_P = -means_A[0::2] - weight * logsigmoid(margin_P)
    return Compared(losses_P, weight * means_A, margin_P > 0)


class Kto(Choice):
    """Kahneman-Tversky optimisation: answers that are good or bad, one by one."""

    code: ClassVar[str] = "engines.algorithms.preference_losses:kto_loss"
    kind: Literal["kto"]
    beta: PositiveFloat = 0.1
    good_weight: PositiveFloat = 1.0
    bad_weight: PositiveFloat = 1.0
    """weights of good and of bad answers; their sums over the data are to be about equal"""


def kto_loss(answers: Answers, *, beta: float, good_weight: float, bad_weight: float) -> Compared:
    """good_weight (1 - sigmoid(beta (r - z))) of a good answer, bad_weight (1 - sigmoid(beta (z -
    r))) of a bad one, with the baseline z.

    Ethayarajh et al. 2024 (arXiv 2402.01306), eq. 7. z is max(0, mean log ratio of other
    rows' answers to these prompts), without a gradient.
    Example: good, r 3, z 1, beta 0.5 -> 1 - sigmoid(1) = 0.26894.
    """
    import torch

    above_A = beta * (answers.ratios_A - answers.baseline)
    good_A = answers.is_good_A
    losses_A = torch.where(
        good_A, good_weight * torch.sigmoid(-above_A), bad_weight * torch.sigmoid(above_A)
    )
    return Compared(losses_A, beta * answers.ratios_A, torch.where(good_A, above_A, -above_A) > 0)


def _with_kind(written: Any) -> Any:
    """`ipo` for `{kind: ipo}`; settings without a kind are DPO's."""
    if isinstance(written, str):
        return {"kind": written}
    return {"kind": "dpo", **written} if isinstance(written, dict) else written


PreferenceLoss = Annotated[
    Dpo | Ipo | Kto | Orpo | Simpo, Field(discriminator="kind"), BeforeValidator(_with_kind)
]


def is_paired(loss: Choice) -> bool:
    return not isinstance(loss, Kto)


def has_reference(loss: Choice) -> bool:
    """Return whether it reads logprobs of the model that the stage began with."""
    if isinstance(loss, Dpo):
        return not loss.reference_free
    return not isinstance(loss, Orpo | Simpo)


def loss_function(loss: Choice) -> Callable[[Answers], Compared]:
    """The formula with these settings."""
    return partial(our_part(loss.code), **loss.model_dump(exclude={"kind"}))


def _margins(scores_A: Tensor) -> Tensor:
    """[P] by how much each better answer's score is the larger one."""
    return scores_A[0::2] - scores_A[1::2]
