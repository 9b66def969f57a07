"""BackgroundSampler: rolls tickets out while the trainer trains.

    admission ──▶ rolling tickets ──▶ finished: fresh and can teach? ──▶ buffer ──▶ groups_for(step)
        ▲                                       └ too old: dropped, or rolled again (`on_stale`)
        └── step_done: the policy has its next version, so tickets for one more step may start

A publish interrupts nothing: turns under way go on with the new weights, and each token has its own
version. A rollout that outlives `max_staleness` publishes is ended, because it could not be trained
on any more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from engines.rollout.buffers import GroupBuffer
from engines.rollout.producer import Producer, Sampled
from engines.rollout.protocols import PolicyVersion
from engines.rollout.tickets import OnStale, Ticket
from engines.types import Group
from infra.processes.coroutines import end_tasks

CANCEL_S = 30.0
"""what rollouts that are ended may take to close their environments"""
_FILE = "tickets.json"


@dataclass(frozen=True, slots=True)
class _Rolling:
    """A ticket under way."""

    ticket: Ticket
    version: int
    """of the policy when it started"""
    task: asyncio.Task[None]

    @property
    def is_open(self) -> bool:
        """Return whether a resumed stage has to roll it: its group does not wait, and nobody gave
        it up. The loop hears of an end a moment after it."""
        if self.task.done():
            return not self.task.cancelled() and self.task.exception() is not None
        return not self.task.cancelling()


@dataclass(slots=True)
class BackgroundSampler:
    """Use it by `async with`: at the end of the block nothing is rolling any more."""

    producer: Producer
    buffer: GroupBuffer
    policy: PolicyVersion
    steps: int
    """of the stage"""
    on_stale: OnStale = "drop"
    """what becomes of a ticket whose rollouts took too long"""
    trained: int = 0
    """steps that are done"""
    _open: list[int] = field(default_factory=list[int])
    """drawn tickets that have to be rolled, again or still"""
    _rolling: dict[int, _Rolling] = field(default_factory=dict[int, _Rolling])
    _sampled: Sampled = field(default_factory=Sampled)
    _since: float = 0.0
    _recovered: int = 0
    _recovered_tokens: int = 0
    _finished: asyncio.Event = field(default_factory=asyncio.Event)
    _is_training: bool = False
    """the next step's groups are taken, and the policy has not its next version yet"""
    _error: BaseException | None = None
    _is_closing: bool = False

    async def __aenter__(self) -> Self:
        self._since = time.monotonic()
        self._admit()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        await end_tasks([rolling.task for rolling in self._rolling.values()], CANCEL_S)

    async def groups_for(self, tickets: Collection[int] | None) -> Sampled:
        """Return when groups for a step wait, all of them durable: those of `tickets`, if they are
        given, or as many as a step trains on, or all there will be. -> what was sampled since the
        last call.

        Raises what a rollout raised: EngineError.
        """
        asked = time.monotonic()
        if tickets is not None:
            self._start_missing(tickets)
        while not self._is_enough(tickets) and self._rolling and self._error is None:
            self._finished.clear()
            await self._finished.wait()
        if self._error is not None:
            raise self._error
        self._is_training = True
        await self.producer.flush()
        return self._hand_over(asked)

    def step_done(self) -> None:
        """The policy has its next version, or keeps its own for good reason: go on with the next
        step's tickets, and without those that are too old by now."""
        self.trained += 1
        self._is_training = False
        for rolling in list(self._rolling.values()):
            is_too_old = self.policy.version - rolling.version > self.buffer.max_staleness
            if is_too_old and not rolling.task.done():  # or its end is dealt with already
                rolling.task.cancel()
                self._gave_up(rolling.ticket.number)
        self._admit()

    @property
    def first_open(self) -> int:
        """The first ticket whose rollouts may still be needed from the journal."""
        return min([*self._open, *self._rolling, self.producer.source.next])

    def save(self, folder: Path) -> Callable[[], None]:
        """Write into a checkpoint's folder which tickets have to be rolled. -> what writes, in a
        thread, what the data source needs besides."""
        state = self.producer.source.state(self.first_open)
        rolling = [number for number, each in self._rolling.items() if each.is_open]
        state["open"] = sorted({*self._open, *rolling})
        state["dropped_share"] = self.producer.dropped_share
        (folder / _FILE).write_text(json.dumps(state))
        return self.producer.source.take_unsaved()

    def restore(self, folder: Path) -> None:
        """Take up a checkpoint's tickets."""
        state = json.loads((folder / _FILE).read_text())
        self.producer.source.restore(state)
        self._open = state["open"]
        self.producer.dropped_share = state["dropped_share"]

    def _is_enough(self, tickets: Collection[int] | None) -> bool:
        if tickets is not None:
            return not any(number in self._rolling for number in tickets)
        return len(self.buffer) >= self.buffer.groups_per_step

    def _start_missing(self, tickets: Collection[int]) -> None:
        """Have all of these wait or roll, whatever admission says."""
        source = self.producer.source
        while source.next <= max(tickets, default=-1):
            self._start(source.draw(1)[0])
        for number in tickets:
            if not self.buffer.has(number) and number not in self._rolling:
                self._start(source.again(number))

    def _admit(self) -> None:
        """Start as many tickets as may start now: those that are open first."""
        source = self.producer.source
        count = self.producer.admission.beside_training(
            waiting=len(self.buffer), rolling=len(self._rolling) + len(self._open),
            drawn=source.next, trained=self.trained, steps=self.steps,
            is_training=self._is_training,
        )  # fmt: skip
        opened, self._open = self._open, []
        for ticket in [*map(source.again, opened), *source.draw(count)]:
            self._start(ticket)

    def _start(self, ticket: Ticket) -> None:
        if ticket.number in self._open:
            self._open.remove(ticket.number)
        task = asyncio.create_task(self._roll(ticket), name=f"ticket {ticket.number}")
        self._rolling[ticket.number] = _Rolling(ticket, self.policy.version, task)
        task.add_done_callback(lambda done: self._over(ticket.number, done))

    async def _roll(self, ticket: Ticket) -> None:
        group, drop = await self.producer.roll_and_filter(ticket)
        self._sampled.groups.append(group)
        if self.buffer.is_fresh(group):
            self.producer.emit(group, drop, self._sampled)
        else:
            self._gave_up(ticket.number)

    def _gave_up(self, ticket: int) -> None:
        self._sampled.stale += 1
        if self.on_stale == "requeue":
            self._open.append(ticket)

    def _over(self, ticket: int, task: asyncio.Task[None]) -> None:
        rolling = self._rolling.get(ticket)
        if rolling is not None and rolling.task is task:  # else it rolls again already
            del self._rolling[ticket]
        error = None if task.cancelled() else task.exception()
        if error is None and not self._is_closing:
            try:
                self._admit()
            except Exception as fault:  # nobody sees what a callback raises
                error = fault
        self._error = self._error or error
        self._finished.set()

    def _hand_over(self, asked: float) -> Sampled:
        sampled, self._sampled = self._sampled, Sampled()
        now, recovered = time.monotonic(), self.producer.recovered
        sampled.seconds, self._since = now - self._since, now
        sampled.recovered, self._recovered = recovered - self._recovered, recovered
        tokens = self.producer.recovered_tokens
        sampled.recovered_tokens, self._recovered_tokens = tokens - self._recovered_tokens, tokens
        sampled.waited_seconds = now - asked
        sampled.rolling = len(self._rolling)
        for groups in (sampled.groups, sampled.kept):
            groups.sort(key=_ticket)
        return sampled


def _ticket(group: Group) -> int:
    return group.ticket
