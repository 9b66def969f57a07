"""Micro-batch plans hold every sequence once, within bounds, evenly over ranks, in equal time."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.batching import MicroBatch, plan_micro_batches

pytestmark = pytest.mark.unit


def quadratic(lengths: list[int]) -> list[float]:
    return [float(length + length * length) for length in lengths]


def plan(lengths: list[int], max_tokens: int, dp: int) -> list[list[MicroBatch]]:
    return plan_micro_batches(lengths, max_tokens, dp, quadratic(lengths))


def load(batches: list[MicroBatch], costs: Sequence[float]) -> float:
    return sum(costs[i] for batch in batches for i in batch)


# By hand


def test_first_fit_decreasing() -> None:
    # Longest first: 6 opens a micro-batch, 5 opens another, 4 joins the 6 (10), 3 joins the 5 (8),
    # 2 joins the second (10), 1 opens a third.
    assert plan([1, 2, 3, 4, 5, 6], 10, 1) == [[[3, 5], [1, 2, 4], [0]]]


def test_first_fit_takes_the_first_room_and_not_the_tightest() -> None:
    # 12 and 10 open one each, with rooms 8 and 10; 9 fits the second only and leaves room for 1.
    # The 1 goes to the first.
    assert plan([12, 10, 9, 1], 20, 1) == [[[1, 2], [0, 3]]]


def test_micro_batches_are_filled_to_the_last_token_and_no_further() -> None:
    assert plan([5, 5, 5, 5], 10, 1) == [[[0, 1], [2, 3]]]
    assert plan([5, 5, 5, 5], 9, 1) == [[[0], [1], [2], [3]]]


@pytest.mark.parametrize("number", range(1, 42))
def test_sequences_just_over_half_a_bound_stay_alone(number: int) -> None:
    assert plan([26] * number, 50, 1) == [[[i] for i in range(number)]]


def test_ranks_share_cost_and_not_tokens() -> None:
    # Costs 110, 30, 30, 30, 20: 10 | 5 5 5 4, at 110 each. By tokens it would be 10 5 | 5 5 4.
    assert plan([5, 10, 5, 4, 5], 20, 2) == [[[1]], [[0, 2, 3, 4]]]


def test_costs_are_the_callers_own() -> None:
    # The same lengths: only the costs say that the last is worth the other three.
    assert plan_micro_batches([4, 4, 4, 4], 16, 2, [1, 1, 1, 3]) == [[[3]], [[0, 1, 2]]]


def test_a_rank_with_fewer_micro_batches_halves_its_costliest() -> None:
    # Costs 10, 4, 3, 2, 1 in three ranks: 10 | 4 1 | 3 2. Cap 6: the second rank's lengths 4 + 4
    # need two micro-batches, so the third's 3 + 3 is halved, and the first gets an empty one.
    found = plan_micro_batches([1, 4, 3, 3, 4], 6, 3, [10, 4, 3, 2, 1])
    assert found == [[[0], []], [[1], [4]], [[2], [3]]]


def test_halves_weigh_about_the_same() -> None:
    # Ranks: 20 + 1 (a tie at 20 goes to the rank with fewer sequences), 8 + 5 + 4 + 3. The first
    # needs two micro-batches. Halving the second: 8 | 5, then 4 to the 5, then 3 to the 8.
    costs = [20, 8, 5, 4, 3, 1]
    assert plan_micro_batches(costs, 20, 2, costs) == [[[0], [5]], [[1, 4], [2, 3]]]


def test_halving_goes_on_with_the_costliest() -> None:
    # Ranks: 20 + 1 + 1, each as long as the bound, and 9 + 5 + 4 + 2 + 1. Halving the second: 9 |
    # 5, 4 to the 5, 2 to the 9 (a tie goes to fewer sequences), 1 to the 5 and 4. Then 9 | 2.
    lengths, costs = [10, 1, 1, 1, 1, 10, 1, 10], [20, 9, 5, 4, 2, 1, 1, 1]
    found = plan_micro_batches(lengths, 10, 2, costs)
    assert found == [[[0], [5], [7]], [[2, 3, 6], [1], [4]]]


def test_costs_may_be_in_any_unit() -> None:
    # 3 | 1 1 1, of a cost that is nothing beside 1.
    costs = [3e-20, 1e-20, 1e-20, 1e-20]
    assert plan_micro_batches([1, 1, 1, 1], 9, 2, costs) == [[[0]], [[1, 2, 3]]]


def test_the_costliest_is_halved_wherever_it_stands() -> None:
    # Ranks: 11 + 9 + 5 + 2 and 11 + 8 + 6. Cap 6: the first's lengths 1, 3, 3, 4 are packed as
    # (4, 1) at 13 and (3, 3) at 14, the second's 6, 2, 6 need three. So 14 is halved: 9 | 5.
    lengths, costs = [1, 6, 3, 3, 4, 2, 6], [11, 11, 9, 5, 2, 8, 6]
    found = plan_micro_batches(lengths, 6, 2, costs)
    assert found == [[[0, 4], [2], [3]], [[1], [5], [6]]]


def test_oversized_sequences_do_not_share() -> None:
    assert plan([50, 60, 3], 10, 1) == [[[1], [0], [2]]]


def test_sequences_that_cost_nothing_are_spread_as_well() -> None:
    assert plan_micro_batches([1, 1, 1, 1], 4, 2, [0, 0, 0, 0]) == [[[0, 2]], [[1, 3]]]


def test_an_oversized_sequence_gets_its_own_micro_batch() -> None:
    assert plan([3, 50, 4], 10, 1) == [[[1], [0, 2]]]


def test_a_rank_without_a_sequence_keeps_step_with_an_empty_micro_batch() -> None:
    assert plan([5], 10, 2) == [[[0]], [[]]]
    assert plan([], 10, 2) == [[[]], [[]]]


@pytest.mark.parametrize(("max_tokens", "dp"), [(0, 1), (1, 0), (-1, 1)])
def test_bounds_must_be_positive(max_tokens: int, dp: int) -> None:
    with pytest.raises(ValueError, match=rf"positive, got {max_tokens} and {dp}"):
        plan([1], max_tokens, dp)
    assert plan([1], 1, 1) == [[[0]]]


def test_every_sequence_needs_a_cost() -> None:
    with pytest.raises(ValueError, match="2 sequences need as many costs, got 1"):
        plan_micro_batches([1, 1], 1, 1, [1.0])


def test_planning_loads_no_torch() -> None:
    code = "import sys, engines.batching; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# For any lengths


@given(
    lengths=st.lists(st.integers(1, 60), max_size=60),
    bound=st.integers(1, 80),
    dp=st.integers(1, 5),
)
def test_any_plan_is_complete_bounded_and_even(lengths: list[int], bound: int, dp: int) -> None:
    found = plan(lengths, bound, dp)
    assert found == plan(lengths, bound, dp)
    assert len(found) == dp
    assert len({len(rank) for rank in found}) == 1
    batches = [batch for rank in found for batch in rank]
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert sum(lengths[i] for i in batch) <= bound or len(batch) == 1


@given(
    costs=st.lists(st.integers(1, 1000), min_size=1, max_size=80),
    dp=st.integers(1, 8),
)
def test_no_rank_is_far_above_the_ideal(costs: list[int], dp: int) -> None:
    """The last sequence of the slowest rank went to what was then the least loaded."""
    loads = [load(rank, costs) for rank in plan_micro_batches([1] * len(costs), 9, dp, costs)]
    ideal = max(sum(costs) / dp, max(costs))
    assert max(loads) <= sum(costs) / dp + max(costs) * (1 - 1 / dp) + 1e-9
    assert max(loads) <= 2 * ideal


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    dp=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_the_order_of_sequences_changes_no_micro_batch(
    lengths: list[int], dp: int, seed: int
) -> None:
    """Sequences of equal length are alike, so micro-batches are compared by their lengths."""

    def contents(lengths: list[int]) -> list[list[list[int]]]:
        found = plan(lengths, 64, dp)
        return [[sorted(lengths[i] for i in batch) for batch in rank] for rank in found]

    shuffled = random.Random(seed).sample(lengths, len(lengths))
    assert contents(shuffled) == contents(lengths)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    dp=st.integers(1, 4),
)
def test_each_rank_runs_its_heaviest_micro_batch_first(lengths: list[int], dp: int) -> None:
    costs = quadratic(lengths)
    for rank in plan(lengths, 64, dp):
        weights = [load([batch], costs) for batch in rank]
        assert weights == sorted(weights, reverse=True)


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_packing_wastes_less_than_half(lengths: list[int]) -> None:
    """Any two neighbours of first fit hold more than one bound together."""
    num_batches = len(plan(lengths, 50, 1)[0])
    assert num_batches <= 2 * sum(lengths) / 50 + 1
