"""Paired tests with numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reports.paired_tests import (
    holm,
    interval_of,
    mcnemar,
    paired,
    paired_over_domains,
    sign_flips,
)

pytestmark = pytest.mark.unit


def test_mcnemar_is_exact() -> None:
    """8 better, 1 worse of 9 that differ: 2 x (C(9,0) + C(9,1)) / 2^9 = 20 / 512."""
    assert mcnemar(8, 1) == pytest.approx(20 / 512)
    assert mcnemar(1, 8) == mcnemar(8, 1)
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 0) == pytest.approx(2 / 32)


def test_outcomes_of_0_and_1_are_tested_by_mcnemar() -> None:
    first = [0.0] * 8 + [1.0] + [1.0] * 3
    second = [1.0] * 8 + [0.0] + [1.0] * 3
    found = paired(first, second)
    assert (found.better, found.worse, found.problems) == (8, 1, 12)
    assert found.difference == pytest.approx(7 / 12)
    assert (found.test, found.p) == ("McNemar", pytest.approx(20 / 512))
    assert 0 < found.low < 7 / 12 < found.high <= 1


def test_signs_of_few_differences_are_all_tried() -> None:
    """Differences .5, .25, .25 sum to 1: of 8 signs, +++ and --- are as far from 0."""
    assert sign_flips([0.5, 0.25, 0.25]) == 2 / 8
    assert sign_flips([0.5, 0.0, -0.5]) == 1.0
    assert sign_flips([]) == sign_flips([0.0] * 9) == 1.0
    assert sign_flips([1.0]) == 1.0, "one problem is no evidence"


@pytest.mark.parametrize(("better", "worse"), [(8, 1), (40, 20), (1100, 1000)])
def test_sign_flips_agree_with_mcnemar(better: int, worse: int) -> None:
    """Of yes and no both are the same test: exact, by drawn signs, and by the normal limit, whose
    error is about that of one problem."""
    found = sign_flips([1.0] * better + [-1.0] * worse)
    exact = mcnemar(better, worse)
    assert found == pytest.approx(exact, abs=1e-12 if better == 8 else 0.003)


def test_the_interval_adds_half_a_problem_to_each_way_of_answering() -> None:
    """12 problems, 8 better, 1 worse, so n = 14, b = 8.5, c = 1.5: mean 7 / 14, variance
    10 / 14 - 1 / 4 = .46429, half 1.959964 x sqrt(.46429 / 14) = .35693."""
    low, high = interval_of([1.0] * 8 + [-1.0] + [0.0] * 3, 1.0)
    assert (low, high) == pytest.approx((0.5 - 0.35693, 0.5 + 0.35693), abs=1e-5)


def test_no_difference_on_few_problems_is_no_certainty() -> None:
    """8 problems without a difference: 1.959964 x sqrt(.1 / 10)."""
    found = paired([0.0] * 8, [0.0] * 8)
    assert (found.difference, found.p) == (0.0, 1.0)
    assert (found.low, found.high) == pytest.approx((-0.195996, 0.195996), abs=1e-6)
    assert paired([0.0] * 3, [1.0] * 3).low < 0.4


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_the_interval_holds_the_difference_and_is_that_of_the_exchanged_models(pairs) -> None:
    first, second = ([pair[i] for pair in pairs] for i in (0, 1))
    found, exchanged = paired(first, second), paired(second, first)
    assert found.low - 1e-9 <= found.difference <= found.high + 1e-9
    assert (exchanged.low, exchanged.high) == pytest.approx((-found.high, -found.low), abs=1e-9)
    assert exchanged.p == pytest.approx(found.p, abs=0.05)


def test_domains_count_alike_however_many_problems_they_have() -> None:
    """Domain a: 1 problem, +1; domain b: 3 problems, 0, 0 and -.5: (1 - 1/6) / 2."""
    found = paired_over_domains([[0.0], [0.5, 1.0, 1.0]], [[1.0], [0.5, 1.0, 0.5]])
    assert found.difference == pytest.approx((1 - 1 / 6) / 2)
    assert (found.problems, found.better, found.worse) == (4, 1, 1)
    even = paired_over_domains([[0.0], [1.0]], [[1.0], [1.0]])
    assert even == paired([0.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="2 and 3 problems"):
        paired_over_domains([[0.0], [1.0]], [[1.0], [1.0, 1.0]])


def test_metrics_beyond_1_have_an_interval_of_their_own_scale() -> None:
    """Losses 10 and 14 that fall by 4 and 2: scale 14 - 6 = 8, n = 4, mean -6 / 4, variance
    (20 + 64) / 4 - 2.25 = 18.75, half 1.959964 x sqrt(18.75 / 4) = 4.24344."""
    found = paired([10.0, 14.0], [6.0, 12.0])
    assert (found.low, found.high) == pytest.approx((-5.74344, 2.74344), abs=1e-5)


def test_the_same_numbers_give_the_same_interval() -> None:
    first, second = [0.1, 0.4, 0.3], [0.2, 0.3, 0.9]
    assert paired(first, second) == paired(first, second)
    assert paired(second, first).difference == -paired(first, second).difference


def test_problems_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 problems"):
        paired([0.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="0 and 0"):
        paired([], [])


def test_holm_by_hand() -> None:
    """Sorted: 0.01 x 3, then 0.03 x 2, then 0.04 x 1, which may not be below the one before it."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
