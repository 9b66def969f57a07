"""InFlight: how many turns are under way at the servers, and for how long there were none."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from infra.timeline import SERVERS, now, took_place


@dataclass(frozen=True, slots=True)
class ServerUse:
    """Of a stretch of time."""

    idle_seconds: float = 0.0
    """in which no turn was under way"""
    mean_turns: float = 0.0
    """under way, over all of the time"""
    most_turns: int = 0


class InFlight:
    """Of one client."""

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
        """So many more are under way from now on, or fewer."""
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


STALL_S = 600.0
"""what an engine may do beside generating: load weights, restart, wait for a busy machine"""
_ASSUMED_TOKENS_PER_S = 5.0
"""of one sequence, until an answer has shown how fast they come"""
_SLOWDOWN = 10.0
"""how much slower than the fastest answer a sequence may be: a full engine is slower than an empty
one"""


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
        """Until it counts as lost; 0 or less: it does. Answers to others only lengthen it, except
        that the time of an overtaken request runs from the overtaking."""
        since = max(request.sent_at, self._answered_at)
        if request.overtaken_at is not None:
            since = request.overtaken_at
        return since + self.allowed_seconds(request) - self._clock()

    def allowed_seconds(self, request: SentRequest) -> float:
        """How long its tokens may take, with the stall that an engine may have."""
        rate = self._tokens_per_s / _SLOWDOWN or _ASSUMED_TOKENS_PER_S
        return self._stall_s + request.max_tokens / rate
