"""All that is known of OPO's advantage: one estimator, one test file."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engines.algorithms.advantages import GroupAdvantage, OpoAdvantage, advantages
from engines.algorithms.contract import advantage_faults
from tests.programs.proof.cases import replies, step_of
from tests.programs.proof.reference import Reply

pytestmark = pytest.mark.unit
OPO = OpoAdvantage(kind="opo")


def reply(reward: float, group: int, rollout: int, length: int) -> Reply:
    return Reply(
        reward=reward,
        group=group,
        rollout=rollout,
        logprobs=[-1.0] * length,
        token_rewards=[0.0] * length,
        values=[0.0] * length,
        trained=[True] * length,
        teachers=[[0.0] * length] * 2,
        listens=[0.5, 0.5],
    )


def by_reply(made: list[Reply]) -> list[float]:
    """The advantage of each reply: all its tokens have the same."""
    found = iter(advantages(OPO, step_of(made)).tolist())
    rows = [[next(found) for _ in r.logprobs] for r in made]
    assert all(len(set(row)) == 1 for row in rows)
    return [row[0] for row in rows]


def anew(made: list[Reply]) -> list[float]:
    """The formula in plain loops, over rollouts."""
    totals = {r.rollout: r.reward for r in made}
    lengths = dict.fromkeys(totals, 0)
    for r in made:
        totals[r.rollout] += sum(r.token_rewards)
        lengths[r.rollout] += len(r.logprobs)
    found: list[float] = []
    for r in made:
        mates = {m.rollout for m in made if m.group == r.group}
        weight = sum(lengths[m] for m in mates)
        found.append(totals[r.rollout] - sum(lengths[m] * totals[m] for m in mates) / weight)
    return found


@pytest.mark.proof("advantage opo", "hand", numbers=5)
def test_by_hand() -> None:
    # Group 0: (3 x 1 + 1 x 0) / 4 = 0.75. Group 1: (2 x 2 + 1 x -1 + 1 x 1) / 4 = 1.
    made = [reply(1, 0, 0, 3), reply(2, 1, 1, 2), reply(0, 0, 2, 1)]
    made += [reply(-1, 1, 3, 1), reply(1, 1, 4, 1)]
    assert by_reply(made) == pytest.approx([0.25, 1.0, -0.75, -2.0, 0.0])


@pytest.mark.proof("advantage opo", "reference")
@pytest.mark.parametrize("seed", range(20))
def test_reference(seed: int) -> None:
    made = replies(random.Random(seed))
    assert by_reply(made) == pytest.approx(anew(made), rel=1e-9, abs=1e-9)


@pytest.mark.proof("advantage opo", "invariance")
@pytest.mark.parametrize("seed", range(10))
def test_neither_order_nor_names_nor_other_groups_matter(seed: int) -> None:
    draw = random.Random(seed)
    made = replies(draw)
    plain = by_reply(made)
    order = draw.sample(range(len(made)), len(made))
    moved = [
        replace(made[i], group=40 - made[i].group, rollout=99 - made[i].rollout) for i in order
    ]
    assert by_reply(moved) == pytest.approx([plain[i] for i in order], rel=1e-9, abs=1e-9)
    first = [i for i, r in enumerate(made) if r.group == 0]
    alone = by_reply([made[i] for i in first])
    assert alone == pytest.approx([plain[i] for i in first], rel=1e-9, abs=1e-9)


@pytest.mark.proof("advantage opo", "limit")
def test_for_equal_lengths_it_is_the_plain_group_advantage() -> None:
    made = [reply(n % 3, n % 2, n, 4) for n in range(10)]
    plain = advantages(GroupAdvantage(kind="group", std=False), step_of(made))
    assert advantages(OPO, step_of(made)).tolist() == pytest.approx(plain.tolist(), abs=1e-12)


@pytest.mark.proof("advantage opo", "edge")
def test_equal_rewards_and_lone_rollouts_have_exactly_none() -> None:
    made = [reply(0.1, 0, 0, 3), reply(0.1, 0, 1, 5), reply(0.1, 0, 2, 1), reply(7, 1, 3, 2)]
    assert by_reply(made) == [0.0] * 4
    assert not advantages(OPO, step_of(made)).requires_grad


@pytest.mark.proof("advantage opo", "edge")
def test_samples_of_one_rollout_count_by_all_its_tokens() -> None:
    # Rollout 0 has 1 + 2 tokens, rollout 1 has 1: the same as test_by_hand's group 0.
    made = [reply(1, 0, 0, 1), reply(1, 0, 0, 2), reply(0, 0, 1, 1)]
    assert by_reply(made) == pytest.approx([0.25, 0.25, -0.75])


def test_its_declaration_and_defaults() -> None:
    assert OPO.model_dump() == {"kind": "opo", "whiten": False}
    assert OPO.needs == ("spread",)
    assert advantage_faults(lambda tokens: advantages(OPO, tokens), OPO.needs) == []
