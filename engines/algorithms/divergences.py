"""How far the student's distribution is from its teacher's, over whole distributions.

Of every place the teacher's likeliest tokens are compared one by one, and all others as if they
were one token more. The gradient goes through every compared token, sampled or not, so it is exact
where the advantage `distillation` has an estimate. Axes: R rows, K compared tokens, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveInt

from engines.algorithms.inputs import LossInputs, PolicyLoss
from engines.algorithms.parts import PartWithCode

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

Direction = Literal["reverse", "forward"]
LEAST_REST = 1e-7
"""what the student's other tokens are taken to have together at least: less is rounding in fp32"""


class DivergenceLoss(PartWithCode):
    """KL between student and teacher over the teacher's likeliest tokens and the rest as one."""

    code: ClassVar[str] = "engines.algorithms.divergences:divergence_loss"
    kind: Literal["divergence"]
    direction: Literal["reverse", "forward"] = "reverse"
    """reverse: KL(student || teacher), which leaves out what the teacher would not say; forward:
    KL(teacher || student), which covers all that it would say"""
    top_k: PositiveInt | Literal["all"] = 64
    """how many of the teacher's likeliest tokens are compared one by one; all: the whole
    vocabulary. Each costs a rank 8 bytes for every trained token of a step"""


def divergence_loss(tokens: LossInputs, *, direction: Direction, top_k: int | str) -> PolicyLoss:
    """[R] the KL of each place. Advantages and ratios play no part."""
    import torch

    del top_k  # the trainer's: the teacher was asked for so many
    top = tokens.teacher
    if top is None:
        raise ValueError("divergence needs a teacher's likeliest tokens")
    loss_R = lumped_kl(top.student_logprobs_RK, top.logprobs_RK, top.rest_R, direction=direction)
    return PolicyLoss(loss_R, torch.zeros_like(loss_R, dtype=torch.bool))


def lumped_kl(
    student_logprobs_RK: Tensor,
    teacher_logprobs_RK: Tensor,
    teacher_rest_R: Tensor | None,
    *,
    direction: Direction,
) -> Tensor:
    """[R] sum of p (log p - log q), p the student's and q the teacher's; forward: the other way.

    With a rest, the logprob of all tokens together that are not among these K, the sum has one more
    term. The KL is at most that of the whole distributions, and 0 only where the K agree.
    Example: student 1/4, teacher 1/2 -> 1/4 ln 1/2 + 3/4 ln 3/2 = 0.1308; forward 0.1438.
    """
    import torch

    both = [student_logprobs_RK, teacher_logprobs_RK]
    if teacher_rest_R is not None:
        rests = [_rest(student_logprobs_RK), teacher_rest_R[:, None]]
        both = [torch.cat(pair, 1) for pair in zip(both, rests, strict=True)]
    p_RK, q_RK = both if direction == "reverse" else reversed(both)
    return (p_RK.exp() * (p_RK - q_RK)).sum(1)


def _rest(logprobs_RK: Tensor) -> Tensor:
    """[R, 1] logprob of all other tokens together."""
    rest_R1 = -logprobs_RK.logsumexp(1, keepdim=True).expm1()
    return rest_R1.clamp(min=LEAST_REST).log()


def top_logprobs(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    count: int,
    *,
    temperature: float,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """([R, K + 1] logprobs of each row's likeliest tokens and of all others together, [R, K] their
    ids). No gradient.

    Arguments as of `linear_logprobs`. Rows are taken a few at a time, with all logits of each.
    """
    import torch

    parts = [
        _top(each_RH, weight_VH, count, temperature, group)
        for each_RH in hidden_RH.split(max(_LOGITS // len(weight_VH), 1))
    ]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([ids for _, ids in parts])


_LOGITS = 1 << 24
"""about how many are in memory at once"""


def _top(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    count: int,
    temperature: float,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    import torch
    import torch.distributed as dist

    logits_RV = (hidden_RH @ weight_VH.t()).float() / temperature
    top_RK, ids_RK, rest_R1 = _split(logits_RV, min(count, len(weight_VH)))
    if group is not None and group.size() > 1:
        ids_RK = ids_RK + len(weight_VH) * group.rank()
        found: list[Tensor] = []
        for own in (top_RK, ids_RK, rest_R1):
            each = [torch.empty_like(own) for _ in range(group.size())]
            dist.all_gather(each, own.contiguous(), group=group)
            found.append(torch.cat(each, 1))
        top_RK, order_RK, rest_R1 = _split(found[0], count)
        ids_RK = found[1].gather(1, order_RK)
        rest_R1 = torch.cat([rest_R1, found[2]], 1).logsumexp(1, keepdim=True)
    whole_RK = torch.cat([top_RK, rest_R1], 1)
    return whole_RK - whole_RK.logsumexp(1, keepdim=True), ids_RK


def _split(logits_RV: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest, [R, K], where they are, and [R, 1] the log of the sum of all others' exp."""
    top_RK, ids_RK = logits_RV.topk(count)
    others_RV = logits_RV.scatter(1, ids_RK, float("-inf"))
    return top_RK, ids_RK, others_RV.logsumexp(1, keepdim=True)
