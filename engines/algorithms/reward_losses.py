"""Losses of reward models: their settings, and their formulas.

Axes: A answers, P comparisons, K answers of the longest list. A comparison is a pair, a list, or
one answer alone; its answers stand in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, NonNegativeFloat

from infra.config import Choice

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Judged:
    """A micro-batch's answers, with what the model and the data say of each."""

    rewards_A: Tensor
    worth_A: Tensor
    """what the row says: more is better; a target, where the loss has one"""
    comparison_A: Tensor
    """which comparison each belongs to, from 0 on; these never fall"""
    margins_P: Tensor
    """by how much the better answer of a pair is the better one"""


@dataclass(frozen=True, slots=True)
class RewardLosses:
    """The loss of each comparison, and whether the model already judges it as the data do."""

    losses_P: Tensor
    right_P: Tensor
    """0 to 1: whether the rewards say what the data say; of a list, in how many of its pairs"""


class BradleyTerry(Choice):
    """A pair's better answer is to have the larger reward."""

    code: ClassVar[str] = "engines.algorithms.reward_losses:bradley_terry"
    kind: Literal["bradley-terry"] = "bradley-terry"
    margins: bool | None = None
    """whether a pair's rewards are to be further apart than the data's margins; left out: where a
    column `margin` says them; true: elsewhere by the difference of the answers' scores, too"""
    centring: NonNegativeFloat = 0.01
    """weight of the squared sum of a pair's rewards, which keeps rewards around 0"""


def bradley_terry(judged: Judged, *, margins: bool | None, centring: float) -> RewardLosses:
    """-log sigmoid(reward of the better - of the worse - margin) + centring x (their sum)^2.

    Bradley and Terry 1952, as in Ouyang et al. 2022 (arXiv 2203.02155), eq. 1; the margin: Touvron
    et al. 2023 (Llama 2, arXiv 2307.09288), eq. 2; centring: Eisenstein et al. 2023 (arXiv
    2312.09244).
    Example: rewards 2 and 1, margin 0.5, centring 0.01 -> -log sigmoid(0.5) + 0.09 = 0.56408.
    """
    from torch.nn.functional import logsigmoid

    better_P, worse_P = judged.rewards_A[0::2], judged.rewards_A[1::2]
    apart_P = better_P - worse_P
    asked_P = apart_P if margins is False else apart_P - judged.margins_P
    losses_P = -logsigmoid(asked_P) + centring * (better_P + worse_P) ** 2
    return RewardLosses(losses_P, (apart_P > 0).to(losses_P))


class PlackettLuce(Choice):
    """A list's answers are to be drawn in their order, each before all that are worse."""

    code: ClassVar[str] = "engines.algorithms.reward_losses:plackett_luce"
    kind: Literal["plackett-luce"]
    centring: NonNegativeFloat = 0.01
    """weight of the squared double mean of a list's rewards: of two answers, their squared sum"""


def plackett_luce(judged: Judged, *, centring: float) -> RewardLosses:
    """Sum over a list's answers i of -log(exp r_i / (exp r_i + sum of exp r_j of all worse j)),
    + centring x (2 x mean r)^2.

    Plackett 1975 and Luce 1959, as in Ouyang et al. 2022, and Cao et al. 2007 (ListMLE). Answers
    that are equally good are not compared; of two answers it is `bradley_terry` without a margin.
    Example: rewards 2, 1, 0 in their order, centring 0 -> 0.40761 + 0.31326 + 0 = 0.72087.
    """
    import torch

    comparison_A = judged.comparison_A
    sizes_P = torch.bincount(comparison_A)
    first_P = sizes_P.cumsum(0) - sizes_P
    places = (comparison_A, torch.arange(len(comparison_A)).to(first_P) - first_P[comparison_A])
    empty_PK = judged.rewards_A.new_zeros(len(sizes_P), int(sizes_P.max()))
    rewards_PK = empty_PK.index_put(places, judged.rewards_A)
    worth_PK = empty_PK.index_put(places, judged.worth_A)
    is_there_PK = empty_PK.bool().index_put(places, torch.ones_like(comparison_A).bool())
    is_both_PKK = is_there_PK[:, :, None] & is_there_PK[:, None, :]
    is_worse_PKK = (worth_PK[:, :, None] > worth_PK[:, None, :]) & is_both_PKK
    # Each row has the answer itself, so that no row is empty; a place without one adds 0.
    asked_PKK = is_worse_PKK | torch.eye(rewards_PK.shape[1]).bool().to(is_worse_PKK.device)
    beside_PKK = rewards_PK[:, None, :].masked_fill(~asked_PKK, -torch.inf)
    losses_P = (beside_PKK.logsumexp(2) - rewards_PK).sum(1)
    centre_P = 2 * rewards_PK.sum(1) / sizes_P
    is_right_PKK = is_worse_PKK & (rewards_PK[:, :, None] > rewards_PK[:, None, :])
    right_P = is_right_PKK.sum((1, 2)).to(losses_P) / is_worse_PKK.sum((1, 2)).clamp(min=1)
    return RewardLosses(losses_P + centring * centre_P**2, right_P)


class Binary(Choice):
    """The sigmoid of each answer's reward is to be the probability that it is good."""

    code: ClassVar[str] = "engines.algorithms.reward_losses:binary"
    kind: Literal["binary"]


def binary(judged: Judged) -> RewardLosses:
    """-y log sigmoid(r) - (1 - y) log sigmoid(-r), where y is 1 for a good answer.

    Cobbe et al. 2021 (arXiv 2110.14168), sec. 4.2, of whole answers.
    Example: reward 2, good -> -log sigmoid(2) = 0.12693; bad -> 2.12693.
    """
    from torch.nn.functional import logsigmoid

    rewards_A, worth_A = judged.rewards_A, judged.worth_A
    losses_P = -worth_A * logsigmoid(rewards_A) - (1 - worth_A) * logsigmoid(-rewards_A)
    return RewardLosses(losses_P, ((rewards_A > 0) == (worth_A > 0.5)).to(losses_P))


class Regression(Choice):
    """Each answer's reward is to be its score."""

    code: ClassVar[str] = "engines.algorithms.reward_losses:regression"
    kind: Literal["regression"]


def regression(judged: Judged) -> RewardLosses:
    """(r - y)^2, where y is the answer's score.

    Wang et al. 2024 (HelpSteer2, arXiv 2406.08673), sec. 3. Nothing is right or wrong.
    Example: reward 2, score 3.5 -> 2.25.
    """
    import torch

    losses_P = (judged.rewards_A - judged.worth_A) ** 2
    return RewardLosses(losses_P, torch.zeros_like(losses_P))


def _with_kind(written: Any) -> Any:
    """`binary` for `{kind: binary}`; settings without a kind are those of pairs."""
    if isinstance(written, str):
        return {"kind": written}
    return {"kind": "bradley-terry", **written} if isinstance(written, dict) else written


RewardLoss = Annotated[
    BradleyTerry | PlackettLuce | Binary | Regression,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
]

Compares: TypeAlias = Literal["pairs", "verdicts", "lists", "goodness", "scores"]
"""what one comparison is: two answers; an answer that is good or bad, for `kto`; all answers of a
row; an answer and how good it is, from 0 to 1; an answer and its score"""


def compares(loss: Choice) -> Compares:
    """The kind of comparison that a reward model's loss learns from."""
    match loss:
        case PlackettLuce():
            return "lists"
        case Binary():
            return "goodness"
        case Regression():
            return "scores"
        case _:
            return "pairs"
