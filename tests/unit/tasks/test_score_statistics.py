"""Best of k, standard errors and intervals, with numbers worked out by hand."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluate.score_statistics import (
    best_of,
    best_of_n_kl,
    chosen_by,
    interval,
    powers_of_two,
    standard_error,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("outcomes", "k", "expected"),
    [
        ([1, 0, 0, 0], 1, 1 / 4),
        ([1, 0, 0, 0], 2, 1 / 2),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        ([1, 1, 0, 0], 2, 5 / 6),  # 1 - C(2,2)/C(4,2) = 1 - 1/6
        ([0, 0, 0, 0], 4, 0.0),
        ([0, 0, 0, 1], 4, 1.0),
        ([0.2, 0.6, 1.0], 2, (0.6 + 1.0 + 1.0) / 3),  # pairs: .2/.6, .2/1, .6/1
    ],
)
def test_best_of_k_by_hand(outcomes, k, expected):
    assert best_of(outcomes, k) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_best_of_k_is_the_mean_over_all_draws_of_k(outcomes, data):
    k = data.draw(st.integers(1, len(outcomes)))
    draws = [max(draw) for draw in itertools.combinations(outcomes, k)]
    assert best_of(outcomes, k) == pytest.approx(fmean(draws), abs=1e-12)


@pytest.mark.parametrize("k", [0, 4])
def test_best_of_more_than_there_are_is_refused(k):
    with pytest.raises(ValueError, match=f"best of {k} needs"):
        best_of([1.0, 0.0, 1.0], k)


@pytest.mark.parametrize(
    ("proxies", "outcomes", "n", "expected"),
    [
        ([1, 2, 3], [0.0, 1.0, 0.0], 1, 1 / 3),
        ([1, 2, 3], [0.0, 1.0, 0.0], 2, 1 / 3),  # draws 12, 13, 23 -> 1, 0, 0
        ([1, 2, 3], [0.0, 1.0, 0.0], 3, 0.0),  # the proxy likes a wrong one best
        ([3, 1, 2, 0], [0.2, 1.0, 0.5, 0.8], 2, (3 * 0.2 + 2 * 0.5 + 1.0) / 6),
        ([5, 5, 1], [1.0, 0.0, 1.0], 2, 0.5),  # .5 of the tie, then 1, then 0
        ([5, 5, 5], [1.0, 0.0, 0.0], 2, 1 / 3),
    ],
)
def test_what_a_proxy_chooses_by_hand(proxies, outcomes, n, expected):
    assert chosen_by(proxies, outcomes, n) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=7), st.data())
def test_what_a_proxy_chooses_is_the_mean_over_all_draws(answers, data):
    n = data.draw(st.integers(1, len(answers)))
    draws = []
    for draw in itertools.combinations(answers, n):
        best = max(proxy for proxy, _ in draw)
        draws.append(fmean(outcome for proxy, outcome in draw if proxy == best))
    proxies, outcomes = zip(*answers, strict=True)
    assert chosen_by(proxies, outcomes, n) == pytest.approx(fmean(draws), abs=1e-12)


def test_one_that_a_proxy_of_the_outcome_itself_chooses_is_the_best():
    outcomes = [0.1, 0.9, 0.4, 0.6, 0.2]
    assert chosen_by(outcomes, outcomes, 3) == pytest.approx(best_of(outcomes, 3))
    with pytest.raises(ValueError, match="best of 6 needs"):
        chosen_by(outcomes, outcomes, 6)


def test_the_distance_of_the_best_of_n_by_hand():
    # ln 4 - 3/4 = 1.386294 - .75
    assert [best_of_n_kl(n) for n in (1, 2, 4)] == pytest.approx([0, 0.193147, 0.636294], abs=1e-6)


def test_k_doubles_up_to_the_number_of_samples():
    assert [powers_of_two(n) for n in (1, 2, 4, 7, 8)] == [[], [2], [2, 4], [2, 4], [2, 4, 8]]


def test_the_standard_error_of_one_value_is_zero():
    assert standard_error([0.3]) == 0.0
    assert standard_error([0.0, 1.0]) == pytest.approx(0.5)


def test_the_interval_of_all_right_does_not_claim_certainty():
    # Wilson with p = 1: low = n / (n + z^2) = 128 / (128 + 3.8415)
    assert interval([1.0] * 128) == pytest.approx((128 / 131.8415, 1.0), abs=1e-4)


def test_the_interval_of_yes_or_no_outcomes_is_wilsons():
    # p = 8/10, n = 10
    # middle = (.8 + 3.8415/20) / (1 + 3.8415/10) = .99207 / 1.38415 = .71674
    # half = 1.95996 / 1.38415 x sqrt(.16/10 + 3.8415/400) = 1.41601 x .16002 = .22658
    low, high = interval([1.0] * 8 + [0.0] * 2)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert interval([1.0] + [0.0] * 7) == pytest.approx((0.0224, 0.4709), abs=1e-4)
    assert interval([1.0] * 7 + [0.0]) == pytest.approx((0.5291, 0.9776), abs=1e-4)


def test_the_interval_of_equal_values_does_not_claim_certainty():
    # Their mean is not 5/6 to the last digit; 99 trials, of which 82.5 are right
    rounded = interval([(0.1 + 0.2) / 2, 0.15])
    assert rounded == pytest.approx(interval([0.15, 0.15])), "equal but for their rounding"
    assert interval([5 / 6] * 99) == pytest.approx((0.7478, 0.8940), abs=1e-4)


def test_the_interval_of_partly_right_problems_is_as_narrow_as_they_vary_little():
    # .25 and .75, four times each: error^2 = .0625 / 7, so .25 / error^2 = 28 trials
    # half = 1.95996 / 1.13720 x sqrt(.25/28 + 3.8415/3136) = 1.72350 x .10076 = .17366
    low, high = interval([0.25, 0.75] * 4)
    assert (low, high) == pytest.approx((0.3263, 0.6737), abs=1e-4)


def test_an_interval_of_nothing_is_everything():
    assert interval([]) == (0.0, 1.0)
