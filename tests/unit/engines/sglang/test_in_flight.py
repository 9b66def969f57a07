"""How many turns are under way, over time."""

from __future__ import annotations

import pytest

from engines.sglang.in_flight import InFlight, ServerUse
from infra.timeline import Timeline, recording

pytestmark = pytest.mark.unit


def test_the_use_of_servers_is_weighted_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("engines.sglang.in_flight.now", lambda: clock[0])
    timeline = Timeline()
    in_flight = InFlight()
    with recording(timeline):
        clock[0] = 101.0
        with in_flight.turn():
            clock[0] = 102.0
            with in_flight.turn():
                assert in_flight.turns == 2
                clock[0] = 104.0
            clock[0] = 105.0
            first = in_flight.since_last()
            clock[0] = 106.0
        clock[0] = 109.0
        second = in_flight.since_last()
    # 1 second of none, 1 of one, 2 of two, 1 of one
    assert first == ServerUse(idle_seconds=1.0, mean_turns=6 / 5, most_turns=2)
    # 1 of one, 3 of none
    assert second == ServerUse(idle_seconds=3.0, mean_turns=1 / 4, most_turns=1)
    assert in_flight.idle_seconds == 4.0
    assert [(e.began, e.seconds) for e in timeline.events] == [(101.0, 5.0)]
