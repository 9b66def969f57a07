"""All that is known of losses that compare two rollouts of a group, and of which two these are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from engines.algorithms.advantages import PairsAdvantage, advantages
from engines.algorithms.aggregation import shares
from engines.algorithms.contract import advantage_faults
from engines.algorithms.inputs import LossInputs
from engines.algorithms.losses import PairDpoLoss, PairIpoLoss, policy_loss
from tests.programs.proof.cases import doubles, flat, replies, step_of, unrolled
from tests.programs.proof.test_gradients import near, slopes
from tests.programs.proof.test_opo import reply

pytestmark = pytest.mark.unit
PAIRS = PairsAdvantage(kind="pairs")


# Which rollouts are compared


def signs(made: Sequence[Any]) -> list[float]:
    """The advantage of each reply: all its tokens have the same."""
    found = iter(advantages(PAIRS, step_of(made)).tolist())
    rows = [[next(found) for _ in r.logprobs] for r in made]
    assert all(len(set(row)) == 1 for row in rows)
    return [row[0] for row in rows]


@pytest.mark.proof("advantage pairs", "hand", numbers=8)
@pytest.mark.proof("advantage pairs", "edge")
def test_the_first_of_the_best_is_compared_with_the_first_of_the_worst() -> None:
    of_groups = [(0, [0, 1, 0.5, 1, 0]), (1, [0.3, 0.3]), (2, [7])]
    rewards = [(reward, group) for group, many in of_groups for reward in many]
    made = [reply(reward, group, n, 2) for n, (reward, group) in enumerate(rewards)]
    assert signs(made) == [-1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.proof("advantage pairs", "reference")
@pytest.mark.proof("advantage pairs", "invariance")
@pytest.mark.parametrize("seed", range(10))
def test_each_group_s_best_and_worst_rollout(seed: int) -> None:
    draw = random.Random(seed)
    made = [replace(r, reward=r.reward + 1e-6 * r.rollout) for r in replies(draw)]
    totals = {r.rollout: r.reward for r in made}
    for r in made:
        totals[r.rollout] += sum(r.token_rewards)
    wanted = []
    for r in made:
        mates = [totals[m.rollout] for m in made if m.group == r.group]
        mine = totals[r.rollout]
        wanted.append(float(mine == max(mates)) - float(mine == min(mates)))
    assert signs(made) == wanted
    order = draw.sample(range(len(made)), len(made))
    moved = [replace(made[i], group=9 - made[i].group, rollout=99 - made[i].rollout) for i in order]
    assert signs(moved) == [wanted[i] for i in order]


@pytest.mark.proof("advantage pairs", "limit")
def test_of_two_rollouts_it_is_the_sign_of_the_group_advantage() -> None:
    made = [reply(reward, n // 2, n, 3) for n, reward in enumerate([0.2, 0.1, -1, 4, 3, 3])]
    assert signs(made) == [1, -1, -1, 1, 0, 0]
    assert advantage_faults(lambda tokens: advantages(PAIRS, tokens), PAIRS.needs) == []


# Their loss


@dataclass(frozen=True, slots=True)
class Side:
    """One rollout of a pair: logprobs of its tokens, sample by sample."""

    now: list[list[float]]
    reference: list[list[float]]

    @property
    def ratio(self) -> float:
        return sum(unrolled(self.now)) - sum(unrolled(self.reference))

    @property
    def num(self) -> int:
        return sum(map(len, self.now))


Pair = tuple[Side, Side]


def dpo(pair: Pair, *, beta: float, smoothing: float = 0.0, by_token: bool = False) -> float:
    better, worse = (s.ratio / s.num if by_token else s.ratio for s in pair)
    margin = beta * (better - worse)
    return (1 - smoothing) * math.log1p(math.exp(-margin)) + smoothing * math.log1p(
        math.exp(margin)
    )


def ipo(pair: Pair, *, beta: float, by_token: bool = True) -> float:
    better, worse = (s.ratio / s.num if by_token else s.ratio for s in pair)
    return (better - worse - 1 / (2 * beta)) ** 2


Anew = Callable[[Pair], float]
CASES: list[tuple[str, Any, Anew]] = [
    ("dpo", PairDpoLoss(kind="dpo"), lambda p: dpo(p, beta=0.1)),
    (
        "dpo",
        PairDpoLoss(kind="dpo", beta=0.7, label_smoothing=0.2, length_normalised=True),
        lambda p: dpo(p, beta=0.7, smoothing=0.2, by_token=True),
    ),
    ("ipo", PairIpoLoss(kind="ipo"), lambda p: ipo(p, beta=0.1)),
    (
        "ipo",
        PairIpoLoss(kind="ipo", beta=0.3, length_normalised=False),
        lambda p: ipo(p, beta=0.3, by_token=False),
    ),
]


def drawn(seed: int, num: int = 4) -> list[Pair]:
    """Rollouts of one or two samples with 1 to 4 tokens each."""
    draw = random.Random(seed)

    def side() -> Side:
        lengths = [draw.randrange(1, 5) for _ in range(draw.choice([1, 1, 2]))]
        rows = [[[-draw.uniform(0.1, 3) for _ in range(n)] for n in lengths] for _ in range(2)]
        return Side(*rows)

    return [(side(), side()) for _ in range(num)]


def inputs(pairs: Sequence[Pair]) -> LossInputs:
    rows = [(p, 1 - 2 * s, i) for p, pair in enumerate(pairs) for s, side in enumerate(pair)
            for i in range(len(side.now))]  # fmt: skip
    now = [pairs[p][sign < 0].now[i] for p, sign, i in rows]
    lengths = torch.tensor([len(row) for row in now])
    segment_R = torch.arange(len(rows)).repeat_interleave(lengths)
    return LossInputs(
        logprobs_R=flat(now).requires_grad_(),
        old_logprobs_R=flat(now) - 0.1,
        advantages_R=doubles([sign for _, sign, _ in rows])[segment_R],
        segment_R=segment_R,
        num_trained_B=lengths,
        reference_R=flat([pairs[p][sign < 0].reference[i] for p, sign, i in rows]),
        pair_B=torch.tensor([p for p, _, _ in rows]),
    )


def mean_over_pairs(spec: Any, tokens: LossInputs) -> torch.Tensor:
    """As the trainer makes it: the mean over rollouts of each one's mean over its tokens."""
    assert tokens.pair_B is not None
    starts = tokens.num_trained_B.cumsum(0) - tokens.num_trained_B
    rollout_B = 2 * tokens.pair_B + (tokens.advantages_R[starts] < 0)
    made = shares("rollout_mean", tokens.num_trained_B, rollout_B)
    weighed_R = policy_loss(spec)(tokens).loss_R * made.weight_N[tokens.segment_R]
    return weighed_R.sum() / made.units_N.sum()


HAND = [(Side([[-1.0, -2.0]], [[-2.0, -3.0]]), Side([[-1.0]], [[0.0]]))]
"""log ratios 2 and -1; a token 1 and -1"""


@pytest.mark.proof("loss {kind}", "hand", numbers=4)
@pytest.mark.parametrize(
    ("kind", "spec", "loss", "slope"),
    [
        # Slopes: -beta sigmoid(-0.3); of each token of the longer answer, of the shorter one's.
        ("dpo", PairDpoLoss(kind="dpo"), 0.554355, (-0.0425557, 0.0425557)),
        # (1 + 1 - 5)^2; 2 (-3) / 2 a token of the longer answer.
        ("ipo", PairIpoLoss(kind="ipo"), 9.0, (-3.0, 6.0)),
    ],
)
def test_by_hand(kind: str, spec: Any, loss: float, slope: tuple[float, float]) -> None:
    tokens = inputs(HAND)
    assert policy_loss(spec)(tokens).loss_R.tolist() == pytest.approx([loss] * 3, abs=1e-6)
    mean_over_pairs(spec, tokens).backward()
    assert tokens.logprobs_R.grad is not None
    wanted = [slope[0], slope[0], slope[1]]
    assert tokens.logprobs_R.grad.tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.proof("loss {kind}", "reference", "invariance")
@pytest.mark.parametrize(("kind", "spec", "anew"), CASES)
def test_the_mean_over_pairs_is_that_of_the_formula(kind: str, spec: Any, anew: Anew) -> None:
    for seed in range(5):
        pairs = drawn(seed)
        wanted = sum(map(anew, pairs)) / len(pairs)
        assert mean_over_pairs(spec, inputs(pairs)).item() == pytest.approx(wanted, abs=1e-9)
        halves = [mean_over_pairs(spec, inputs(part)).item() for part in (pairs[:2], pairs[:1:-1])]
        assert sum(halves) / 2 == pytest.approx(wanted, abs=1e-9)


@pytest.mark.proof("loss {kind}", "gradient")
@pytest.mark.parametrize(("kind", "spec", "anew"), CASES)
def test_the_gradient_is_that_of_finite_differences(kind: str, spec: Any, anew: Anew) -> None:
    (pair,) = drawn(7, num=1)
    tokens = inputs([pair])
    mean_over_pairs(spec, tokens).backward()
    assert tokens.logprobs_R.grad is not None

    def of(values: list[float]) -> float:
        left = iter(values)
        moved = [replace(s, now=[[next(left) for _ in row] for row in s.now]) for s in pair]
        return anew((moved[0], moved[1]))

    wanted = slopes(of, tokens.logprobs_R.detach().tolist())
    assert tokens.logprobs_R.grad.tolist() == near(wanted)


@pytest.mark.proof("loss {kind}", "limit")
@pytest.mark.parametrize(("kind", "at_once"), [("dpo", math.log(2)), ("ipo", 25.0)])
def test_a_policy_that_is_its_reference_has_the_loss_of_no_margin(
    kind: str, at_once: float
) -> None:
    spec = {"dpo": PairDpoLoss(kind="dpo"), "ipo": PairIpoLoss(kind="ipo")}[kind]
    pairs = [(replace(a, reference=a.now), replace(b, reference=b.now)) for a, b in drawn(1)]
    assert mean_over_pairs(spec, inputs(pairs)).item() == pytest.approx(at_once, abs=1e-9)


@pytest.mark.proof("loss {kind}", "edge")
@pytest.mark.parametrize(("kind", "spec", "anew"), CASES)
def test_what_is_far_away_stays_finite_and_what_is_missing_is_said(
    kind: str, spec: Any, anew: Anew
) -> None:
    far = (Side([[-1000.0]], [[0.0]]), Side([[0.0, 0.0]], [[-500.0, -500.0]]))
    tokens = inputs([far, *HAND])
    mean_over_pairs(spec, tokens).backward()
    assert tokens.logprobs_R.grad is not None
    assert tokens.logprobs_R.grad.isfinite().all()
    assert not policy_loss(spec)(tokens).is_clipped_R.any()
    with pytest.raises(ValueError, match="needs the pair of each sequence"):
        policy_loss(spec)(replace(tokens, pair_B=None))


@pytest.mark.proof("loss dpo", "edge")
def test_without_a_reference_it_compares_logprobs() -> None:
    free = PairDpoLoss(kind="dpo", reference_free=True)
    blind = replace(inputs(HAND), reference_R=None)
    # Logprobs -3 and -1: -log sigmoid(0.1 x -2).
    assert mean_over_pairs(free, blind).item() == pytest.approx(math.log1p(math.exp(0.2)), abs=1e-9)
