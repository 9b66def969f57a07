"""All that is known of the KL between student and teacher: one loss, one test file."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from engines.algorithms.divergences import Direction, DivergenceLoss, lumped_kl, top_logprobs
from engines.algorithms.inputs import ComparedTokens, LossInputs
from engines.algorithms.linear_logprobs import linear_logprobs
from engines.algorithms.losses import policy_loss

pytestmark = pytest.mark.unit
DIRECTIONS: tuple[Direction, ...] = ("reverse", "forward")
ROWS, HIDDEN, VOCAB = 5, 4, 11
TEMPERATURE = 0.7


def logs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


@pytest.mark.proof("loss divergence", "hand", numbers=4)
def test_by_hand() -> None:
    # The teacher says 1/2, 1/4, 1/8, 1/8 and the student 1/4 of each of four tokens.
    student, teacher = logs([1 / 4] * 4), logs([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    # All: 1/4 (ln 1/2 + 0 + ln 2 + ln 2) = ln 2 / 4; forward 1/2 ln 2 + 0 - 1/4 ln 2, the same.
    for direction in DIRECTIONS:
        (whole,) = lumped_kl(student, teacher, None, direction=direction).tolist()
        assert whole == pytest.approx(math.log(2) / 4)
    # One and the rest: 1/4 ln 1/2 + 3/4 ln 3/2 = 0.1308; forward 1/2 ln 2 + 1/2 ln 2/3 = 0.1438.
    for direction, wanted in zip(DIRECTIONS, (0.130812, 0.143841), strict=True):
        rest = teacher[:, 1:].logsumexp(1)
        (one,) = lumped_kl(student[:, :1], teacher[:, :1], rest, direction=direction).tolist()
        assert one == pytest.approx(wanted, abs=1e-6)


def anew(student: list[float], teacher: list[float], count: int, direction: Direction) -> float:
    """Of whole distributions, in plain loops: the teacher's likeliest, then the others as one."""
    likeliest = sorted(range(len(teacher)), key=lambda v: -teacher[v])
    kept, rest = likeliest[:count], likeliest[count:]
    pairs = [(student[v], teacher[v]) for v in kept]
    if rest:
        pairs.append((sum(student[v] for v in rest), sum(teacher[v] for v in rest)))
    ordered = pairs if direction == "reverse" else [(t, s) for s, t in pairs]
    return sum(p * math.log(p / q) for p, q in ordered)


def softmax(logits: list[float]) -> list[float]:
    exps = [math.exp(z) for z in logits]
    return [e / sum(exps) for e in exps]


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and output layers of a student and a teacher."""
    draw = torch.Generator().manual_seed(seed)
    sizes = [(ROWS, HIDDEN), (VOCAB, HIDDEN)] * 2
    return tuple(torch.randn(size, generator=draw) for size in sizes)


def distributions(hidden: Tensor, weight: Tensor) -> list[list[float]]:
    return [softmax(row) for row in (hidden @ weight.t() / TEMPERATURE).double().tolist()]


def losses(
    hidden: Tensor, weight: Tensor, theirs: tuple[Tensor, Tensor], count: int, direction: Direction
) -> Tensor:
    """[R] by the product's path: the teacher's likeliest tokens, the student's logprobs of them,
    the loss."""
    said, ids = top_logprobs(*theirs, count, temperature=TEMPERATURE)
    own, _ = linear_logprobs(hidden, weight, ids, temperature=TEMPERATURE)
    spec = DivergenceLoss(kind="divergence", direction=direction, top_k=count)
    rest = said[:, count] if count < VOCAB else None
    return policy_loss(spec)(tokens_of(ComparedTokens(said[:, :count], own, rest))).loss_R


def tokens_of(teacher: ComparedTokens | None) -> LossInputs:
    nothing = torch.zeros(ROWS)
    return LossInputs(
        nothing, nothing, nothing, torch.arange(ROWS), torch.ones(ROWS), None, teacher
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", [1, 4, VOCAB])
@pytest.mark.proof("loss divergence", "reference")
def test_the_loss_is_that_of_whole_distributions_in_plain_loops(
    count: int, direction: Direction
) -> None:
    for seed in range(3):
        hidden, weight, *theirs = drawn(seed)
        mine = losses(hidden, weight, (theirs[0], theirs[1]), count, direction).tolist()
        pairs = zip(distributions(hidden, weight), distributions(*theirs), strict=True)
        wanted = [anew(student, teacher, count, direction) for student, teacher in pairs]
        assert mine == pytest.approx(wanted, rel=1e-6, abs=2e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", [1, 4, VOCAB])
@pytest.mark.proof("loss divergence", "gradient")
def test_the_gradient_is_that_of_finite_differences(count: int, direction: Direction) -> None:
    """In each number of the hidden states, of the formula in plain loops."""
    hidden, weight, *theirs = drawn(7)
    leaf = hidden.clone().requires_grad_()
    factors = torch.arange(1.0, ROWS + 1)
    loss = (losses(leaf, weight, (theirs[0], theirs[1]), count, direction) * factors).sum()
    (mine,) = torch.autograd.grad(loss, leaf)
    teachers, step = distributions(*theirs), 1e-5

    def of(row: int, moved: Tensor) -> float:
        (student,) = distributions(moved[None], weight.double())
        return (row + 1) * anew(student, teachers[row], count, direction)

    for row in range(ROWS):
        for place in range(HIDDEN):
            move = torch.zeros(HIDDEN, dtype=torch.float64)
            move[place] = step
            ends = [of(row, hidden[row].double() + sign * move) for sign in (1, -1)]
            wanted = (ends[0] - ends[1]) / (2 * step)
            assert mine[row, place].item() == pytest.approx(wanted, rel=1e-3, abs=2e-5)


@pytest.mark.proof("loss divergence", "invariance")
def test_the_numbers_of_tokens_play_no_part() -> None:
    hidden, weight, other, theirs = drawn(1)
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))
    for direction in DIRECTIONS:
        plain = losses(hidden, weight, (other, theirs), 3, direction)
        moved = losses(hidden, weight[order], (other, theirs[order]), 3, direction)
        assert moved.tolist() == pytest.approx(plain.tolist(), abs=1e-6)


@pytest.mark.proof("loss divergence", "limit")
def test_lumping_never_adds_and_more_tokens_come_nearer_to_the_whole() -> None:
    for seed in range(3):
        hidden, weight, *theirs = drawn(seed)
        for direction in DIRECTIONS:
            by_count = [
                losses(hidden, weight, (theirs[0], theirs[1]), count, direction)
                for count in range(1, VOCAB + 1)
            ]
            assert all((few <= more + 1e-5).all() for few, more in pairwise(by_count))


@pytest.mark.proof("loss divergence", "edge")
def test_a_student_that_is_its_teacher_or_a_teacher_that_is_sure() -> None:
    hidden, weight, *_ = drawn(2)
    for direction in DIRECTIONS:
        leaf = hidden.clone().requires_grad_()
        same = losses(leaf, weight, (hidden, weight), 3, direction)
        assert same.abs().max() < 1e-6
        assert torch.autograd.grad(same.sum(), leaf)[0].abs().max() < 1e-5
        # In fp32 a sure teacher leaves nothing to the rest; the loss stays finite.
        sure = losses(hidden, weight, (hidden * 1e3, weight), 3, direction)
        assert sure.isfinite().all()
    nothing = losses(hidden[:0], weight, (hidden[:0], weight), 3, "reverse")
    assert nothing.shape == (0,)
    with pytest.raises(ValueError, match="divergence needs a teacher's likeliest tokens"):
        policy_loss(DivergenceLoss(kind="divergence"))(tokens_of(None))


@pytest.mark.proof("logprobs and entropy", "reference")
def test_logprobs_of_several_labels_are_those_of_each() -> None:
    hidden, weight, *_ = drawn(3)
    draw = random.Random(0)
    labels = torch.tensor([[draw.randrange(VOCAB) for _ in range(3)] for _ in range(ROWS)])
    labels[0] = labels[0, 0]  # one token three times
    together, entropies = linear_logprobs(hidden, weight, labels, temperature=TEMPERATURE)
    for column in range(3):
        alone = linear_logprobs(hidden, weight, labels[:, column], temperature=TEMPERATURE)
        assert torch.equal(together[:, column], alone[0])
        assert torch.equal(entropies, alone[1])
