"""Which turns share a request, which requests share a lane, and which turns wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engines.sglang import turn_queue
from engines.sglang.turn_queue import AskedTurn, Batch, TurnQueue
from engines.types import Generation, Sampling

pytestmark = pytest.mark.unit


def _turn(route: str, first_id: int = 1) -> AskedTurn:
    future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
    return AskedTurn([first_id], Sampling(4, route=route), future)


def _taken(queue: TurnQueue, routes: Sequence[str]) -> list[Batch]:
    for route in routes:
        queue.add(_turn(route))
    return queue.take()


def _routes(batch: Batch) -> list[str]:
    return [turn.sampling.route for turn in batch.turns]


async def test_sticky_turns_of_a_route_go_to_the_lane_of_its_first_turn() -> None:
    queue = TurnQueue(16, "sticky", 1024)
    first = {b.lane: _routes(b) for b in _taken(queue, ["a"] * 8 + ["b"] * 8 + ["c"] * 8)}
    # Eight rollouts of `a` and eight of `b` fill a lane of 16; `c` begins the next one.
    assert [set(routes) for routes in first.values()] == [{"a", "b"}, {"c"}]
    of_ab, of_c = first
    later = {b.lane: _routes(b) for b in _taken(queue, ["c", "b", "a", "c"])}
    assert {lane: sorted(routes) for lane, routes in later.items()} == {
        of_c: ["c", "c"],
        of_ab: ["a", "b"],
    }


async def test_a_route_that_begins_later_begins_a_lane() -> None:
    queue = TurnQueue(16, "sticky", 1024)
    (first,) = _taken(queue, ["a"])
    (second,) = _taken(queue, ["b"])
    assert first.lane != second.lane


async def test_turns_without_a_route_are_not_all_for_one_server() -> None:
    begun = _taken(TurnQueue(4, "sticky", 1024), [""] * 10 + ["a"] * 2)
    assert sorted(len(b.turns) for b in begun) == [2, 3, 3, 4]
    assert len({b.lane for b in begun}) == 4


async def test_a_lane_is_never_begun_by_more_turns_than_a_request_has() -> None:
    queue = TurnQueue(4, "sticky", 1024)
    begun = _taken(queue, ["a"] * 3 + ["b"] * 3 + ["c"])
    assert [_routes(b) for b in begun] == [["a"] * 3, ["b"] * 3 + ["c"]]


async def test_two_clients_never_name_a_lane_alike() -> None:
    (one,), (two,) = (_taken(TurnQueue(4, "sticky", 1024), ["a"]) for _ in range(2))
    assert one.lane != two.lane


async def test_a_turn_without_a_route_is_remembered_nowhere() -> None:
    queue = TurnQueue(4, "sticky", 1024)
    (one,), (two,) = _taken(queue, [""]), _taken(queue, [""])
    assert one.lane != two.lane


async def test_forgotten_routes_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_queue, "_KNOWN_ROUTES", 2)
    queue = TurnQueue(4, "sticky", 1024)
    lanes = {route: _taken(queue, [route])[0].lane for route in ("a", "b", "c")}
    assert _taken(queue, ["c"])[0].lane == lanes["c"]
    assert _taken(queue, ["a"])[0].lane != lanes["a"]


async def test_spread_turns_have_no_lane_and_go_in_equal_batches() -> None:
    batches = _taken(TurnQueue(16, "spread", 1024), ["a"] * 20 + ["b"] * 20)
    assert [(len(b.turns), b.lane) for b in batches] == [(13, ""), (13, ""), (14, "")]


async def test_turns_beyond_the_bound_wait_for_a_place_in_their_order() -> None:
    queue = TurnQueue(2, "spread", 4)
    batches = _taken(queue, list("abcdef"))
    assert [_routes(b) for b in batches] == [["a", "b"], ["c", "d"]]
    assert (queue.num_waiting, queue.take()) == (2, [])
    queue.give_back(2)
    assert [_routes(b) for b in queue.take()] == [["e", "f"]]
    assert queue.num_waiting == 0


async def test_a_turn_that_was_given_up_while_it_waited_takes_no_place() -> None:
    queue = TurnQueue(4, "spread", 1)
    _taken(queue, ["a"])
    given_up = _turn("b")
    queue.add(given_up)
    queue.add(_turn("c"))
    given_up.generation.cancel()
    queue.give_back()
    assert [_routes(b) for b in queue.take()] == [["c"]]


async def test_taking_from_a_long_queue_looks_at_no_more_turns_than_it_takes() -> None:
    looks = 0

    class Counted(asyncio.Future[Any]):
        def done(self) -> bool:
            nonlocal looks
            looks += 1
            return super().done()

    queue = TurnQueue(4, "spread", 8)
    for _ in range(2000):
        queue.add(AskedTurn((1,), Sampling(4), Counted()))
    under_way = queue.take()
    while under_way:
        queue.give_back(len(under_way.pop().turns))
        under_way += queue.take()
    assert (queue.num_waiting, looks) == (0, 2000)
