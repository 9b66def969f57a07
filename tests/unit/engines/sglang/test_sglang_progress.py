"""When a request counts as lost, with times worked out by hand."""

from __future__ import annotations

import pytest

from engines.sglang.turn_queue import Progress

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_before_any_answer_5_tokens_a_second_are_assumed(clock: Clock) -> None:
    progress = Progress(stall_s=100, clock=clock)
    request = progress.begin(max_tokens=1000)
    assert progress.seconds_left(request) == 100 + 1000 / 5
    clock.now = 301
    assert progress.seconds_left(request) == -1


def test_a_tenth_of_the_fastest_rate_is_allowed(clock: Clock) -> None:
    progress = Progress(stall_s=100, clock=clock)
    for seconds, tokens in ((10, 500), (10, 20)):
        quick = progress.begin(max_tokens=500)
        clock.now += seconds
        progress.answer(quick, tokens)
    request = progress.begin(max_tokens=1000)
    assert progress.allowed_seconds(request) == 100 + 1000 / 5  # 50 a second at best
    assert progress.seconds_left(request) == 300


def test_answers_to_those_that_were_sent_before_keep_it_waiting(clock: Clock) -> None:
    progress = Progress(stall_s=100, clock=clock)
    earlier = [progress.begin(max_tokens=10) for _ in range(50)]
    clock.now = 1
    last = progress.begin(max_tokens=10)
    for request in earlier:
        clock.now += 60
        progress.answer(request, 10)
    assert clock.now > 3000
    assert progress.seconds_left(last) > 100


def test_answers_to_those_that_were_sent_later_do_not(clock: Clock) -> None:
    progress = Progress(stall_s=100, clock=clock)
    request = progress.begin(max_tokens=10)
    for second in range(1, 200):
        clock.now = second
        later = progress.begin(max_tokens=10)
        clock.now += 0.5
        progress.answer(later, 10)
    # 20 tokens a second: 100 + 10 / 2 s after the first answer.
    assert progress.seconds_left(request) == pytest.approx(1.5 + 105 - 199.5)
