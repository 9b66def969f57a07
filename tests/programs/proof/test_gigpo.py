"""All that is known of GiGPO's advantage: one estimator, one test file."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from statistics import stdev

import pytest
import torch

from engines.algorithms.advantages import GigpoAdvantage, GroupAdvantage, advantages
from engines.algorithms.contract import advantage_faults
from engines.algorithms.inputs import StepTokens, Turns

pytestmark = pytest.mark.unit
PLAIN = GigpoAdvantage(kind="gigpo", gamma=0.5, std=False)


@dataclass(frozen=True, slots=True)
class Played:
    """One rollout: the tokens of each turn, the state that it answers, what it earned."""

    group: int
    reward: float
    lengths: list[int]
    states: list[int]
    shares: list[float]
    token_reward: float = 0.0


def step_of(made: list[Played]) -> StepTokens:
    turns_N = torch.tensor([len(p.lengths) for p in made])
    lengths_U = torch.tensor([n for p in made for n in p.lengths])
    sequence_U = torch.arange(len(made)).repeat_interleave(turns_N)
    sequence_R = sequence_U.repeat_interleave(lengths_U)
    states = {key: n for n, key in enumerate({(p.group, s): 0 for p in made for s in p.states})}
    return StepTokens(
        rewards_N=torch.tensor([p.reward for p in made], dtype=torch.float64),
        group_N=torch.tensor([p.group for p in made]),
        rollout_N=torch.arange(len(made)),
        sequence_R=sequence_R,
        logprobs_R=-torch.ones(len(sequence_R), dtype=torch.float64),
        token_rewards_R=torch.tensor([p.token_reward for p in made], dtype=torch.float64)[
            sequence_R
        ],
        turns=Turns(
            turn_R=torch.arange(len(lengths_U)).repeat_interleave(lengths_U),
            sequence_U=sequence_U,
            shares_U=torch.tensor([s for p in made for s in p.shares], dtype=torch.float64),
            state_U=torch.tensor([states[p.group, s] for p in made for s in p.states]),
        ),
    )


def by_turn(made: list[Played], spec: GigpoAdvantage = PLAIN) -> list[list[float]]:
    """The advantage of each turn: all its tokens have the same."""
    found = iter(advantages(spec, step_of(made)).tolist())
    rows: list[list[float]] = []
    for played in made:
        of_turns = [[next(found) for _ in range(length)] for length in played.lengths]
        assert all(len(set(values)) == 1 for values in of_turns)
        rows.append([values[0] for values in of_turns])
    return rows


def anew(made: list[Played], gamma: float, weight: float, std: bool) -> list[list[float]]:
    """The formula in plain loops."""

    def centred(value: float, of: list[float]) -> float:
        difference = value - sum(of) / len(of)
        if max(of) == min(of):
            return 0.0
        return difference / (stdev(of) + 1e-6) if std else difference

    totals = [p.reward + p.token_reward * sum(p.lengths) for p in made]
    returns: list[list[float]] = []
    for p in made:
        earned = [s + p.token_reward * n for s, n in zip(p.shares, p.lengths, strict=True)]
        earned[-1] += p.reward - sum(p.shares)
        returns.append(
            [
                sum(gamma ** (k - t) * earned[k] for k in range(t, len(earned)))
                for t in range(len(earned))
            ]
        )
    rows: list[list[float]] = []
    for n, p in enumerate(made):
        mates = [m for m, other in enumerate(made) if other.group == p.group]
        whole = centred(totals[n], [totals[m] for m in mates])
        rows.append([])
        for t, state in enumerate(p.states):
            alike = [
                returns[m][k] for m in mates for k, s in enumerate(made[m].states) if s == state
            ]
            rows[-1].append(whole + weight * centred(returns[n][t], alike))
    return rows


def some(draw: random.Random, num: int = 12) -> list[Played]:
    made: list[Played] = []
    for n in range(num):
        turns = draw.randrange(1, 5)
        made.append(
            Played(
                group=n % 3 if n < num - 1 else 7,
                reward=draw.choice([0.0, 1.0, draw.uniform(-1, 2)]),
                lengths=[draw.randrange(1, 4) for _ in range(turns)],
                states=[0, *(draw.randrange(1, 4) for _ in range(turns - 1))],
                shares=[draw.choice([0.0, 0.5, draw.uniform(-1, 1)]) for _ in range(turns)],
                token_reward=draw.choice([0.0, -0.1]),
            )
        )
    return made


@pytest.mark.proof("advantage gigpo", "hand", numbers=5)
def test_by_hand() -> None:
    # Totals 1, 0, mean 0.5. Returns at gamma 1/2: the first earns 0.25, then 0.75 -> 0.625, 0.75;
    # the second nothing. Both begin in state 0 (mean 0.3125); states 1 and 2 are met once.
    first = Played(0, 1.0, [2, 1], [0, 1], [0.25, 0.0])
    second = Played(0, 0.0, [1, 1, 1], [0, 2, 2], [0.0, 0.0, 0.0])
    rows = by_turn([first, second])
    assert rows[0] == pytest.approx([0.5 + 0.3125, 0.5])
    assert rows[1] == pytest.approx([-0.5 - 0.3125, -0.5, -0.5])


@pytest.mark.proof("advantage gigpo", "reference")
@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_reference(seed: int, std: bool) -> None:
    made = some(random.Random(seed))
    spec = GigpoAdvantage(kind="gigpo", gamma=0.9, turn_weight=0.7, std=std)
    for row, expected in zip(by_turn(made, spec), anew(made, 0.9, 0.7, std), strict=True):
        assert row == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.proof("advantage gigpo", "invariance")
@pytest.mark.parametrize("seed", range(10))
def test_neither_order_nor_names_nor_other_groups_matter(seed: int) -> None:
    draw = random.Random(seed)
    made = some(draw)
    plain = by_turn(made)
    order = draw.sample(range(len(made)), len(made))
    moved = [
        replace(made[i], group=40 - made[i].group, states=[9 - s for s in made[i].states])
        for i in order
    ]
    for row, i in zip(by_turn(moved), order, strict=True):
        assert row == pytest.approx(plain[i], rel=1e-9, abs=1e-9)
    first = [i for i, played in enumerate(made) if played.group == 0]
    for row, i in zip(by_turn([made[i] for i in first]), first, strict=True):
        assert row == pytest.approx(plain[i], rel=1e-9, abs=1e-9)


@pytest.mark.proof("advantage gigpo", "limit")
def test_without_its_weight_it_is_the_plain_group_advantage() -> None:
    tokens = step_of(some(random.Random(3)))
    none = GigpoAdvantage(kind="gigpo", turn_weight=0.0)
    assert torch.equal(advantages(none, tokens), advantages(GroupAdvantage(kind="group"), tokens))


@pytest.mark.proof("advantage gigpo", "limit")
def test_of_single_turns_in_one_state_it_is_twice_the_group_advantage() -> None:
    made = [Played(0, reward, [3], [0], [0.0]) for reward in (1.0, 0.0, 0.5)]
    twice = [[2 * (reward - 0.5)] for reward in (1.0, 0.0, 0.5)]
    assert by_turn(made) == [pytest.approx(row) for row in twice]


@pytest.mark.proof("advantage gigpo", "edge")
def test_equal_returns_and_states_met_once_have_exactly_none() -> None:
    made = [Played(0, 0.3, [1, 2], [0, n + 1], [0.1, 0.2]) for n in range(3)]
    made.append(Played(1, 5.0, [1], [0], [5.0]))
    assert by_turn(made) == [[0.0, 0.0]] * 3 + [[0.0]]
    assert not advantages(PLAIN, step_of(made)).requires_grad


@pytest.mark.proof("advantage gigpo", "edge")
def test_equal_totals_that_were_earned_at_other_times_differ() -> None:
    made = [Played(0, 1.0, [1, 1], [0, 1], [1.0, 0.0]), Played(0, 1.0, [1, 1], [0, 1], [0.0, 1.0])]
    assert by_turn(made) == [pytest.approx([0.25, -0.5]), pytest.approx([-0.25, 0.5])]


def test_its_declaration_and_defaults() -> None:
    spec = GigpoAdvantage(kind="gigpo")
    assert spec.model_dump() == {
        "kind": "gigpo", "gamma": 0.95, "turn_weight": 1.0, "std": True, "whiten": False,
    }  # fmt: skip
    assert spec.needs == ("spread", "turns")
    assert advantage_faults(lambda tokens: advantages(spec, tokens), spec.needs) == []
