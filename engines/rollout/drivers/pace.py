"""Pace: how far the rollouts of a group may write before a step may end without them.

    round 1: up to `tokens` in each session ──▶ all wait, or are over: the group rests
    round 2: up to 2 x `tokens`             ──▶ ... in this step, or in a later one

Where a rollout waits hangs on its tokens alone, never on the clock, so a stage that was killed
waits at the same places again. A rollout that waits stays as it is, with its environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from engines.types import Generation


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What is left of a group that rests."""

    rollouts: int = 0
    tokens: int = 0
    """that these wrote so far"""


class Pace:
    """The pace of one group. For one event loop."""

    def __init__(self, tokens: int, round: int = 1) -> None:
        """`tokens` of each session in each round; `round`: the present one."""
        self.tokens = tokens
        self.round = round
        self.unfinished = Unfinished()
        """when it rested last"""
        self.on_round: Callable[[], None] = lambda: None
        """called when a round begins; rollouts may be in another process"""
        self.on_rest: Callable[[], None] = lambda: None
        """called when all that is not over waits"""
        self._open: set[RolloutPace] = set()
        self._began = asyncio.Event()
        """set when the next round begins"""
        self._rests = asyncio.Event()

    def begin(self) -> RolloutPace:
        """Return a rollout's, which begins now; all of a group begin at once."""
        rollout = RolloutPace(self)
        self._open.add(rollout)
        return rollout

    def end(self, rollout: RolloutPace) -> None:
        self._open.discard(rollout)
        self.notice_rest()

    def begin_round(self, round: int) -> None:
        """Let rollouts that wait for it go on."""
        self.round = round
        self._rests.clear()
        self._began.set()
        self._began = asyncio.Event()
        self.on_round()
        self.notice_rest()  # who waits for a later round is not woken by this one

    async def rest(self) -> None:
        """Returns when all rollouts that are not over wait for the next round."""
        await self._rests.wait()

    def rested(self, round: int, unfinished: Unfinished) -> None:
        """Note that all that is not over waits; rollouts in another process say so, and `round` is
        the one that they have seen."""
        if round == self.round:
            self.unfinished = unfinished
            self._rests.set()
            self.on_rest()

    def notice_rest(self) -> None:
        """Say that the group rests, if it does now; called when something changed."""
        if self._open and not self.is_over and all(rollout.waits for rollout in self._open):
            tokens = sum(rollout.num_written for rollout in self._open)
            self.rested(self.round, Unfinished(len(self._open), tokens))

    async def reach(self, round: int) -> None:
        while self.round < round:
            await self._began.wait()

    @property
    def is_over(self) -> bool:
        """Return whether nothing may begin before the next round."""
        return self._rests.is_set()


class RolloutPace:
    """The pace of one rollout."""

    def __init__(self, group: Pace) -> None:
        self._group = group
        self._tokens = 0
        """written"""
        self._known: Sequence[int] = ()
        """what each of its sessions will have written, where an earlier attempt finished it"""
        self._waits_for: list[int] = []
        """rounds, of sessions that wait"""
        self._writing = 0
        """sessions"""

    @property
    def num_written(self) -> int:
        """Tokens, up to now."""
        most = self._group.round * self._group.tokens
        return self._tokens + sum(min(size, most) for size in self._known)

    @property
    def waits(self) -> bool:
        waits_for = min(self._waits_for, default=0)
        return waits_for > self._group.round and not self._writing

    @asynccontextmanager
    async def piece(self, written: int, most: int) -> AsyncGenerator[int]:
        """-> how many of `most` tokens a session that wrote `written` writes next. Waits for the
        round in which it may."""
        group = self._group
        await self.reach(max(written // group.tokens + 1, group.round + group.is_over))
        self._writing += 1
        try:
            yield min(most, group.round * group.tokens - written)
        finally:
            self._writing -= 1
            group.notice_rest()

    def wrote(self, made: Generation) -> None:
        self._tokens += len(made.token_ids)

    async def ended(self, round: int, sizes: Sequence[int]) -> None:
        """Wait for one that ended in that round of an earlier attempt, with so many tokens in its
        sessions: returns when it ends in this one."""
        self._known = sizes
        await self.reach(round)

    async def reach(self, round: int) -> None:
        """Returns in that round, or a later one."""
        self._waits_for.append(round)
        try:
            self._group.notice_rest()
            await self._group.reach(round)
        finally:
            self._waits_for.remove(round)

    @contextmanager
    def until_over(self) -> Generator[None]:
        try:
            yield
        finally:
            self._group.end(self)
