"""What a stage and its rollout workers tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engines.types import Problem


@dataclass(frozen=True, slots=True)
class RollRequest:
    """A group to be rolled out."""

    number: int
    """the stage's name for it: a further try has another one"""
    domain: str
    problem: Problem
    size: int
    temperature: float
    group_id: str
    seed_name: str
    known: bytes
    """packed rollouts that need not be sampled again"""
    turns: bytes
    """packed turns that need not be, of the other rollouts"""
    wants_turns: bool
    """whether new turns are told before their rollouts are over"""


@dataclass(frozen=True, slots=True)
class NewRollout:
    """One that is over, and judged."""

    number: int
    """of its request"""
    packed: bytes
    text: str
    """`written_text` of it"""


@dataclass(frozen=True, slots=True)
class NewTurn:
    """One of a rollout that is not over."""

    number: int
    """of its request"""
    packed: bytes


@dataclass(frozen=True, slots=True)
class RequestOver:
    """Nothing follows of a request: all of its rollouts were told before, or it failed."""

    number: int
    recovered_tokens: int
    """of the turns that were not sampled again"""
    error: Exception | None


@dataclass(frozen=True, slots=True)
class News:
    """Of one worker, since it was last asked."""

    rollouts: tuple[NewRollout, ...] = ()
    turns: tuple[NewTurn, ...] = ()
    over: tuple[RequestOver, ...] = ()
    turns_under_way: int = 0
    """now, at the servers"""
    is_in_trouble: bool = False
    """whether a turn failed and is tried again"""


class WorkerLost(Exception):
    """A worker died, or does not answer. What it had not told is lost."""


class WorkerHandle(Protocol):
    """A worker, as the stage holds it."""

    async def roll(self, request: RollRequest) -> None:
        """Have it begin. Raises WorkerLost."""
        ...

    def cancel(self, number: int) -> None:
        """Have it end a request; returns at once."""
        ...

    async def news(self, is_changing: bool) -> News:
        """What happened since the last call; waits for it for a moment. `is_changing`: whether lost
        servers have to wait for their weights. Raises WorkerLost."""
        ...

    async def end(self) -> None:
        """End its process and what it started. Takes seconds at most, and never raises."""
        ...
