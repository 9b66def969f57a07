"""How many turns are under way, over time, and how full the caches are that hold them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from engines.sglang import fleet
from engines.sglang.fleet import CacheUse
from engines.sglang.turn_queue import InFlight, ServerUse
from infra.timeline import Timeline, recording
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit


def test_the_use_of_servers_is_weighted_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("engines.sglang.turn_queue.now", lambda: clock[0])
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


async def test_servers_are_asked_in_turn_how_full_their_caches_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that say it, as SGLang does, and one that is not there any more."""
    monkeypatch.setattr(fleet, "_CACHE_LOOK_S", 0.01)
    asked: list[int] = []

    def says(share: float) -> Any:
        def answer(path: str, _: dict[str, Any]) -> tuple[int, Any]:
            assert path == "/v1/loads?include=core"
            asked.append(1)
            return 200, {"loads": [{"dp_rank": 0, "token_usage": share}]}

        return answer

    with json_server(says(0.25)) as one, json_server(says(0.75)) as other:
        urls = [f"http://127.0.0.1:{port}" for port in (one, other, 9)]
        servers: Any = SimpleNamespace(server_urls=urls)
        caches = CacheUse(servers)
        assert caches.since_last() == {}
        async with caches.watched():
            while len(asked) < 4:
                await asyncio.sleep(0.01)
        found = caches.since_last()
        assert found["kv_use_max"] == 0.75
        assert 0.25 < found["kv_use_mean"] < 0.75
        assert caches.since_last() == {}
