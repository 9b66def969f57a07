"""TurnQueue: which turns of a client travel in one request, where it goes, and which turns wait.

    turns of one tick ─▶ lanes of up to `max_batch` rollouts ─▶ a request a lane ─▶ router ─▶ server

A *lane* is a set of rollouts that one server takes. Rollouts that begin in the same tick, and those
of one group before all others, share a lane, and all their later turns go there too: the server
has the beginning of each in its prefix cache. The router knows a lane by its key, sends it to the
server with the fewest lanes under way, and to another one while that server is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from uuid import uuid4

from engines.sglang.spec import Routing
from engines.types import Generation, Sampling, TokenIds
from infra.timeline import SERVERS, now, took_place

LANE_HEADER = "X-SMG-Routing-Key"
"""sglang-router sends requests with one key to one server, as long as that is healthy"""
_KNOWN_ROUTES = 1 << 16
"""whose lanes are remembered, those that were used last"""
STALL_S = 600.0
"""what an engine may do beside generating: load weights, restart, wait for a busy machine"""
_ASSUMED_TOKENS_PER_S = 5.0
"""of one sequence, until an answer has shown how fast they come"""
_SLOWDOWN = 10.0
"""how much slower than the fastest answer a sequence may be: a full engine is slower than an empty
one"""


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
    """The queued turns of one client."""

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
        """Return what may be sent now, first come first served; `give_back` says when it is
        over."""
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
        """Take the turns that wait; they will not be sent."""
        waiting, self._waiting = self._waiting, deque()
        return [turn for turn in waiting if not turn.is_over]

    def give_back(self, places: int = 1) -> None:
        """Give back the places of so many turns that are over: others may have them."""
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


@dataclass(frozen=True, slots=True)
class ServerUse:
    """How servers were used in a stretch of time."""

    idle_seconds: float = 0.0
    """in which no turn was under way"""
    mean_turns: float = 0.0
    """under way, over all of the time"""
    most_turns: int = 0


class InFlight:
    """The turns that one client has under way."""

    def __init__(self) -> None:
        at = now()
        self.turns = 0
        """under way now"""
        self._changed = at
        self._idle_s = 0.0
        self._turn_seconds = 0.0
        self._most = 0
        self._asked = (at, 0.0, 0.0)
        """when `since_last` was called, with the sums of that moment"""
        self._busy_since = 0.0

    @property
    def idle_seconds(self) -> float:
        """Time in which no turn was under way, since the client was made."""
        return self._idle_s + (0.0 if self.turns else now() - self._changed)

    @contextmanager
    def turn(self) -> Generator[None]:
        """One is under way in the block."""
        self.change(1)
        try:
            yield
        finally:
            self.change(-1)

    def since_last(self) -> ServerUse:
        """The use since this was last asked."""
        self.change(0)
        at = self._changed
        since, idle_s, turn_seconds = self._asked
        self._asked = at, self._idle_s, self._turn_seconds
        most, self._most = self._most, self.turns
        return ServerUse(
            idle_seconds=self._idle_s - idle_s,
            mean_turns=(self._turn_seconds - turn_seconds) / max(at - since, 1e-9),
            most_turns=most,
        )

    def change(self, by: int) -> None:
        """Count so many more as under way from now on, or fewer."""
        at = now()
        seconds, self._changed = at - self._changed, at
        self._turn_seconds += self.turns * seconds
        self._idle_s += 0.0 if self.turns else seconds
        before, self.turns = self.turns, self.turns + by
        self._most = max(self._most, self.turns)
        if self.turns and not before:
            self._busy_since = at
        if before and not self.turns:
            took_place(SERVERS, "busy", self._busy_since, at - self._busy_since)


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request without an answer."""

    sent_at: float
    max_tokens: int
    """of its longest turn"""
    overtaken_at: float | None = None
    """when the first request that was sent later had its answer"""


class Progress:
    """The requests of one client that are under way, and how fast answers come."""

    def __init__(
        self, stall_s: float = STALL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._not_overtaken: deque[SentRequest] = deque()
        """in the order in which they were sent; some may be answered"""
        self._answered_at = float("-inf")
        self._tokens_per_s = 0.0

    def begin(self, max_tokens: int) -> SentRequest:
        request = SentRequest(self._clock(), max_tokens)
        self._not_overtaken.append(request)
        return request

    def answer(self, request: SentRequest, num_tokens: int) -> None:
        """`num_tokens`: of its longest turn."""
        now = self._answered_at = self._clock()
        seconds = max(now - request.sent_at, 1e-3)
        self._tokens_per_s = max(self._tokens_per_s, num_tokens / seconds)
        while self._not_overtaken and self._not_overtaken[0].sent_at < request.sent_at:
            self._not_overtaken.popleft().overtaken_at = now

    def seconds_left(self, request: SentRequest) -> float:
        """Return the seconds until it counts as lost; it does at 0 or less. Answers to others only
        lengthen it, except that the time of an overtaken request runs from the overtaking."""
        since = max(request.sent_at, self._answered_at)
        if request.overtaken_at is not None:
            since = request.overtaken_at
        return since + self.allowed_seconds(request) - self._clock()

    def allowed_seconds(self, request: SentRequest) -> float:
        """Return how long its tokens may take, with the stall that an engine may have."""
        rate = self._tokens_per_s / _SLOWDOWN or _ASSUMED_TOKENS_PER_S
        return self._stall_s + request.max_tokens / rate
