"""Paired tests with numbers worked out by hand."""

from __future__ import annotations

import pytest

from flows.reports.paired_tests import holm, mcnemar, paired

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


def test_the_bootstrap_draws_problems_not_models() -> None:
    """Gains 0.5 and -0.5 of two problems: a resample's mean is -0.5, 0 or 0.5 with 1/4, 1/2, 1/4,
    so the interval is from -0.5 to 0.5, and every resample is as far from the mean of 0."""
    found = paired([0.0, 0.75], [0.5, 0.25])
    assert (found.test, found.difference) == ("paired bootstrap", 0.0)
    assert (found.low, found.high) == (-0.5, 0.5)
    assert found.p == 1.0


def test_a_gain_of_every_problem_alike_is_certain() -> None:
    found = paired([0.25] * 6, [0.5] * 6)
    assert (found.low, found.high) == (0.25, 0.25)
    assert found.p == pytest.approx(1 / 10_001)


def test_the_bootstrap_agrees_with_the_binomial() -> None:
    """Gains 1 or 0 with 4 of 16 at 1: resampled means are binomial(16, 1/4) / 16. Its 2.5% and
    97.5% quantiles are 1 and 8 of 16."""
    found = paired([0.0] * 15 + [0.5], [1.0] * 4 + [0.0] * 11 + [0.5])
    assert (found.low, found.high) == (1 / 16, 8 / 16)


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
