"""When a request that has no answer yet counts as lost: by progress, never by its age.

A request may queue for hours behind others and be in order. It is lost where nobody is answered
any more, or where requests that were sent after it have their answers, for longer than its own
tokens take to generate.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
