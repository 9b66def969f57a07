"""TurnQueue: which turns of a client travel in one request, where it goes, and which turns wait.

    turns of one tick ─▶ lanes of up to `max_batch` rollouts ─▶ a request a lane ─▶ router ─▶ server

A *lane* is a set of rollouts that one server takes. Rollouts that begin in the same tick, and those
of one group before all others, share a lane, and all their later turns go there too: the server
has the beginning of each in its prefix cache. The router knows a lane by its key, sends it to the
server with the fewest lanes under way, and to another one while that server is lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import uuid4

from engines.sglang.spec import Routing
from engines.types import Generation, Sampling, TokenIds

LANE_HEADER = "X-SMG-Routing-Key"
"""sglang-router sends requests with one key to one server, as long as that is healthy"""
_KNOWN_ROUTES = 1 << 16
"""whose lanes are remembered, those that were used last"""


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """One that was asked for."""

    prompt_ids: TokenIds
    sampling: Sampling
    generation: asyncio.Future[Generation]

    @property
    def is_over(self) -> bool:
        """It is answered, or its caller gave up."""
        return self.generation.done()


@dataclass(frozen=True, slots=True)
class Batch:
    """The turns of one request."""

    turns: Sequence[AskedTurn]
    lane: str = ""
    """key of the lane; empty: any server may take it"""


class TurnQueue:
    """Of one client."""

    def __init__(self, max_batch: int, routing: Routing, most_turns: int) -> None:
        """`most_turns`: at the servers at once."""
        self._max_batch = max_batch
        self._most_turns = most_turns
        self._lanes = Lanes(max_batch) if routing == "sticky" else None
        self._waiting: deque[AskedTurn] = deque()
        self._under_way = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, turn: AskedTurn) -> None:
        self._waiting.append(turn)

    def take(self) -> list[Batch]:
        """What may be sent now, first come first served; `give_back` says when it is over."""
        taken: list[AskedTurn] = []
        places = self._most_turns - self._under_way
        while self._waiting and len(taken) < places:
            turn = self._waiting.popleft()
            if not turn.is_over:
                taken.append(turn)
        self._under_way += len(taken)
        by_lane = {"": taken} if self._lanes is None else self._lanes.sort(taken)
        return [
            Batch(turns, lane)
            for lane, of_lane in by_lane.items()
            for turns in equal_parts(of_lane, self._max_batch)
        ]

    def take_all(self) -> list[AskedTurn]:
        """Those that wait; they will not be sent."""
        waiting, self._waiting = self._waiting, deque()
        return [turn for turn in waiting if not turn.is_over]

    def give_back(self, places: int = 1) -> None:
        """So many of those that were taken are over: others may have their places."""
        self._under_way -= places


class Lanes:
    """Which routes share a lane. Turns without a route get new lanes each time."""

    def __init__(self, size: int) -> None:
        """`size`: turns of a tick that begin a lane together."""
        self._size = size
        self._name = uuid4().hex
        self._count = 0
        self._known: OrderedDict[str, str] = OrderedDict()
        """key of each route's lane, those used last at the end"""

    def sort(self, turns: Iterable[AskedTurn]) -> dict[str, list[AskedTurn]]:
        """The turns of one tick by the key of their lane."""
        by_route: dict[str, list[AskedTurn]] = {}
        for turn in turns:
            by_route.setdefault(turn.sampling.route, []).append(turn)
        nowhere = by_route.pop("", [])
        by_lane = {self._new(): list(part) for part in equal_parts(nowhere, self._size)}
        begun, room = "", 0
        for route, of_route in by_route.items():
            lane = self._known.get(route, "")
            if not lane:
                if len(of_route) > room:
                    begun, room = self._new(), self._size
                lane, room = begun, room - len(of_route)
            self._remember(route, lane)
            by_lane.setdefault(lane, []).extend(of_route)
        return by_lane

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    def _remember(self, route: str, lane: str) -> None:
        self._known[route] = lane
        self._known.move_to_end(route)
        if len(self._known) > _KNOWN_ROUTES:
            self._known.popitem(last=False)


def equal_parts(turns: Sequence[AskedTurn], most: int) -> list[Sequence[AskedTurn]]:
    """Neighbours together in parts of up to `most`, whose sizes differ by one at most.

    Neighbours are samples of one prompt, which a server prefills once.
    """
    count = -(-len(turns) // most)
    ends = [len(turns) * part // max(count, 1) for part in range(count + 1)]
    return [turns[begin:end] for begin, end in pairwise(ends)]
