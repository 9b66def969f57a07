"""InFlight: how many turns are under way at the servers, and for how long there were none."""

from __future__ import annotations

from collections.abc import Generator
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
