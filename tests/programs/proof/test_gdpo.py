"""All that is known of GDPO's advantage: one estimator, one test file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

import pytest
import torch

from engines.algorithms.advantages import GdpoAdvantage, GroupAdvantage, advantages
from engines.algorithms.contract import advantage_faults
from engines.algorithms.inputs import Components, StepTokens
from tests.programs.proof.cases import replies, step_of
from tests.programs.proof.reference import Reply
from tests.programs.proof.test_opo import reply

pytestmark = pytest.mark.unit
PLAIN = GdpoAdvantage(kind="gdpo", whiten=False)
Rows = Sequence[Sequence[float]]


def scored(made: list[Reply], scores: Rows, weights: Sequence[float]) -> StepTokens:
    parts = Components(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor([list(weights)] * len(made), dtype=torch.float64),
    )
    return replace(step_of(made), components=parts)


def by_reply(made: list[Reply], scores: Rows, weights: Sequence[float]) -> list[float]:
    found = iter(advantages(PLAIN, scored(made, scores, weights)).tolist())
    rows = [[next(found) for _ in r.logprobs] for r in made]
    assert all(len(set(row)) == 1 for row in rows)
    return [row[0] for row in rows]


def anew(made: list[Reply], scores: Rows, weights: Sequence[float]) -> list[float]:
    """The formula in plain loops, over rollouts."""
    of_rollout = {r.rollout: row for r, row in zip(made, scores, strict=True)}
    found: list[float] = []
    for r in made:
        mates = {m.rollout for m in made if m.group == r.group}
        total = 0.0
        for at, weight in enumerate(weights):
            values = [of_rollout[m][at] for m in mates]
            if len(set(values)) > 1:
                gap = of_rollout[r.rollout][at] - mean(values)
                total += weight * gap / (stdev(values) + 1e-6)
        found.append(total)
    return found


def drawn(seed: int) -> tuple[list[Reply], list[list[float]]]:
    draw = random.Random(seed)
    made = replies(draw)
    of_rollout = {
        r.rollout: [draw.choice([0.0, 1.0]), draw.uniform(-9, 9), draw.uniform(0, 0.1)]
        for r in made
    }
    return made, [of_rollout[r.rollout] for r in made]


@pytest.mark.proof("advantage gdpo", "hand", numbers=3)
def test_by_hand() -> None:
    # First: mean 1/3, squared gaps 4/9 + 1/9 + 1/9 over 2 = 1/3, deviation 0.57735: 1.1547 and
    # -0.57735 twice. Second: 0, 2, 4 of mean 2 and deviation 2: -1, 0, 1, times 0.5.
    made = [reply(0, 0, n, n + 1) for n in range(3)]
    found = by_reply(made, [[1, 0], [0, 2], [0, 4]], [1.0, 0.5])
    assert found == pytest.approx([1.1547005 - 0.5, -0.5773503, -0.5773503 + 0.5], abs=3e-6)


@pytest.mark.proof("advantage gdpo", "hand", numbers=8)
def test_equal_sums_of_other_parts_differ() -> None:
    # Sums 1, 1, 0, 1: the group's advantage is the same for three. First part: mean 1/4, deviation
    # 1/2: 1.5 and -0.5. Second: mean 1/2, deviation 0.57735: -+0.866.
    made = [reply(r, 0, n, 1) for n, r in enumerate([1, 1, 0, 1])]
    scores = [[1, 0], [0, 1], [0, 0], [0, 1]]
    group = advantages(GroupAdvantage(kind="group"), scored(made, scores, [1, 1])).tolist()
    assert group == pytest.approx([0.5, 0.5, -1.5, 0.5], abs=4e-6)
    wanted = [0.6339746, 0.3660254, -1.3660254, 0.3660254]
    assert by_reply(made, scores, [1, 1]) == pytest.approx(wanted, abs=6e-6)
    # Scores 2 x first + 1 x second, first 1, 0, 0, 0.5 and second 0, 2, 2, 1: sums are all 2.
    made = [reply(2, 0, n, 1) for n in range(4)]
    group = advantages(GroupAdvantage(kind="group"), scored(made, scores, [1, 1])).tolist()
    assert group == [0.0] * 4
    scores = [[1, 0], [0, 2], [0, 2], [0.5, 1]]
    assert by_reply(made, scores, [2, 1]) == pytest.approx(
        # mean 0.375, squared gaps 0.390625 + 2 x 0.140625 + 0.015625 = 0.6875 over 3, 0.4787136:
        # 1.3055824, -0.7833495 twice, 0.2611165; the second part has the same with a minus.
        [1.3055824, -0.7833495, -0.7833495, 0.2611165], abs=6e-6,
    )  # fmt: skip


@pytest.mark.proof("advantage gdpo", "reference")
@pytest.mark.parametrize("seed", range(20))
def test_reference(seed: int) -> None:
    made, scores = drawn(seed)
    weights = [1.0, 0.3, 2.0]
    found = by_reply(made, scores, weights)
    assert found == pytest.approx(anew(made, scores, weights), rel=1e-9, abs=1e-9)


@pytest.mark.proof("advantage gdpo", "invariance")
@pytest.mark.parametrize("seed", range(10))
def test_neither_order_nor_scale_nor_the_sum_matter(seed: int) -> None:
    made, scores = drawn(seed)
    plain = by_reply(made, scores, [1, 1, 1])
    order = random.Random(seed).sample(range(len(made)), len(made))
    moved = [replace(made[i], group=40 - made[i].group, reward=7.0) for i in order]
    scaled = [[scores[i][0] * 1000 + 5, scores[i][1], scores[i][2]] for i in order]
    found = by_reply(moved, scaled, [1, 1, 1])
    assert found == pytest.approx([plain[i] for i in order], abs=1e-4)


@pytest.mark.proof("advantage gdpo", "limit")
def test_of_one_reward_it_is_the_groups_and_whitened_it_has_the_batchs_scale() -> None:
    made = [reply(n % 3, n % 2, n, 4) for n in range(10)]
    one = [[r.reward, 3.0] for r in made]
    step = scored(made, one, [1, 1])
    plain = advantages(GroupAdvantage(kind="group"), step)
    assert advantages(PLAIN, step).tolist() == pytest.approx(plain.tolist(), abs=1e-12)
    whole = advantages(GdpoAdvantage(kind="gdpo"), step)
    assert (float(whole.mean()), float(whole.std())) == pytest.approx((0.0, 1.0), abs=1e-6)


@pytest.mark.proof("advantage gdpo", "hand", numbers=3)
def test_a_reward_that_counts_for_some_compares_these_alone() -> None:
    # First part: 1, 1, 0 of mean 2/3 and deviation 0.57735: 0.57735 twice, -1.1547. Second, of the
    # first two: -1, 0: -+0.70711.
    made = [reply(0, 0, n, 1) for n in range(3)]
    step = scored(made, [[1, -1], [1, 0], [0, -9]], [1, 1])
    assert step.components is not None
    counts = torch.tensor([[True, True], [True, True], [True, False]])
    step = replace(step, components=replace(step.components, counts_NC=counts))
    wanted = [0.5773503 - 0.7071068, 0.5773503 + 0.7071068, -1.1547005]
    assert advantages(PLAIN, step).tolist() == pytest.approx(wanted, abs=5e-6)


@pytest.mark.proof("advantage gdpo", "edge")
def test_equal_scores_and_lone_rollouts_have_exactly_none() -> None:
    made = [reply(0, 0, 0, 3), reply(1, 0, 1, 5), reply(7, 1, 2, 2)]
    assert by_reply(made, [[0.1, 2], [0.1, 2], [1, 5]], [1, 1]) == [0.0] * 3


@pytest.mark.proof("advantage gdpo", "edge")
def test_without_components_it_says_so() -> None:
    with pytest.raises(ValueError, match="gdpo needs what each reward of the rubric says"):
        advantages(PLAIN, step_of([reply(1, 0, 0, 1)]))


def test_its_declaration_and_defaults() -> None:
    assert GdpoAdvantage(kind="gdpo").model_dump() == {"kind": "gdpo", "whiten": True}
    assert PLAIN.needs == ("batch", "components")
    assert advantage_faults(lambda tokens: advantages(PLAIN, tokens), PLAIN.needs) == []
