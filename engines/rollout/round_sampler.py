"""RoundSampler: lets a step end without rollouts that are still written; they go on in the next.

    start tickets ──▶ a round: each rollout writes up to so many tokens ──▶ groups that are over
         ▲                    │                                             wait in the buffer
         └── too few, or one is due ◀┴▶ enough: train and publish; the others rest meanwhile

Nothing is thrown away: tokens keep the logprobs and the version of the weights that wrote them, and
what would be too old after the next update is due, so its step does not end without it. What
happens in which round hangs on tokens, never on the clock: a resumed stage has the same bits.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from engines.rollout.background_sampler import CANCEL_S
from engines.rollout.buffers import GroupBuffer
from engines.rollout.drivers.pace import Pace, Unfinished
from engines.rollout.filters import Drop
from engines.rollout.producer import Producer, Sampled
from engines.rollout.protocols import PolicyVersion
from engines.rollout.tickets import Ticket
from engines.types import Group
from infra.processes.coroutines import end_tasks

_FILE = "tickets.json"


@dataclass(frozen=True, slots=True)
class _Rolling:
    """A ticket under way."""

    ticket: Ticket
    version: int
    """of the policy when it started"""
    temperature: float
    pace: Pace
    task: asyncio.Task[tuple[Group, Drop | None]]

    async def round(self) -> None:
        """Returns when the round is over for it. Raises EngineError."""
        rest = asyncio.create_task(self.pace.rest())
        try:
            await asyncio.wait({rest, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rest.cancel()


@dataclass(slots=True)
class RoundSampler:
    """Use it by `async with`: at the end of the block nothing is rolling any more."""

    producer: Producer
    buffer: GroupBuffer
    policy: PolicyVersion
    tokens: int
    """of a rollout in a round"""
    _restored: Sequence[tuple[int, int, float, int, int, int]] = ()
    """tickets of a checkpoint, versions, temperatures, rounds, rollouts that are not over and their
    tokens; until the block begins"""
    _rolling: dict[int, _Rolling] = field(default_factory=dict[int, _Rolling])

    async def __aenter__(self) -> Self:
        restored, self._restored = self._restored, ()
        for number, version, temperature, round, *unfinished in restored:
            ticket = self.producer.source.again(number)
            pace = Pace(self.tokens, round)
            pace.unfinished = Unfinished(*unfinished)
            self._start(ticket, version, temperature, pace)
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks([rolling.task for rolling in self._rolling.values()], CANCEL_S)

    async def fill(self, steps_left: int, recorded: Collection[int] = ()) -> Sampled:
        """Roll until a step's groups wait, all of it durable, and what is due among them.
        `steps_left`: with this one; `recorded`: tickets that an earlier attempt trained on in this
        step. Raises EngineError."""
        began = time.monotonic()
        recovered, tokens = self.producer.recovered, self.producer.recovered_tokens
        sampled, drawn = Sampled(), 0
        while (is_short := self._is_short()) or self._lacks(recorded):
            count = self.producer.admission.in_rounds(
                waiting=len(self.buffer), rolling=len(self._rolling),
                unfinished=sum(map(self._unfinished, self._rolling.values())), drawn=drawn,
                steps_left=steps_left,
            ) if is_short else 0  # fmt: skip
            if not (count or (is_short and self._rolling)):
                count = self.producer.source.left_until(recorded)
            for rolling in self._rolling.values():
                rolling.pace.begin_round(rolling.pace.round + 1)
            for ticket in self.producer.source.draw(count):
                pace = Pace(self.tokens)
                self._start(ticket, self.policy.version, self.producer.temperature, pace)
            drawn += count
            if not self._rolling:
                break
            await self._round(sampled)
        await self.producer.flush()
        sampled.groups.sort(key=lambda group: group.ticket)
        sampled.seconds = sampled.waited_seconds = time.monotonic() - began
        sampled.recovered = self.producer.recovered - recovered
        sampled.recovered_tokens = self.producer.recovered_tokens - tokens
        sampled.rolling = len(self._rolling)
        at_rest = [rolling.pace.unfinished for rolling in self._rolling.values()]
        sampled.unfinished = Unfinished(
            sum(each.rollouts for each in at_rest), sum(each.tokens for each in at_rest)
        )
        return sampled

    @property
    def first_open(self) -> int:
        """The first ticket whose rollouts may still be needed from the journal."""
        restored = [number for number, *_ in self._restored]
        return min([*restored, *self._rolling, self.producer.source.next])

    def save(self, folder: Path) -> Callable[[], None]:
        """Write into a checkpoint's folder which tickets are under way. -> what writes, in a
        thread, what the data source needs besides."""
        state = self.producer.source.state(self.first_open)
        state["rolling"] = [
            [
                number, each.version, each.temperature, each.pace.round,
                each.pace.unfinished.rollouts, each.pace.unfinished.tokens,
            ]
            for number, each in self._rolling.items()
        ]  # fmt: skip
        (folder / _FILE).write_text(json.dumps(state))
        return self.producer.source.take_unsaved()

    def restore(self, folder: Path) -> None:
        """Take up a checkpoint's tickets."""
        state = json.loads((folder / _FILE).read_text())
        self.producer.source.restore(state)
        self._restored = state["rolling"]

    def _lacks(self, recorded: Collection[int]) -> bool:
        """Return whether one of these tickets is still to be rolled."""
        is_rolling = any(number in self._rolling for number in recorded)
        return is_rolling or self.producer.source.left_until(recorded) > 0

    def _is_short(self) -> bool:
        """Return whether too few groups wait, or one that is due does not."""
        if len(self.buffer) < self.producer.admission.groups_per_step:
            return True
        born = {number: rolling.version for number, rolling in self._rolling.items()}
        born |= self.buffer.versions()
        tickets = sorted(born)
        due = self.producer.admission.due([born[n] for n in tickets], self.policy.version)
        return any(number in self._rolling for number in tickets[:due])

    def _unfinished(self, rolling: _Rolling) -> float:
        """Share of a group's rollouts."""
        size = rolling.ticket.group_size or self.producer.group_size
        return rolling.pace.unfinished.rollouts / size

    def _start(self, ticket: Ticket, version: int, temperature: float, pace: Pace) -> None:
        rolled = self.producer.roll_and_filter(ticket, pace, temperature, version)
        task = asyncio.create_task(rolled, name=f"ticket {ticket.number}")
        self._rolling[ticket.number] = _Rolling(ticket, version, temperature, pace, task)

    async def _round(self, sampled: Sampled) -> None:
        """Wait until every ticket rests or is over; groups that are over wait to be trained on."""
        await asyncio.gather(*[rolling.round() for rolling in self._rolling.values()])
        over = [n for n, rolling in sorted(self._rolling.items()) if rolling.task.done()]
        rolled = [self._rolling.pop(number).task.result() for number in over]
        for group, drop in rolled:
            self.producer.emit(group, drop, sampled)
            sampled.groups.append(group)
        self.producer.source.tell([group for group, _ in rolled])
        sampled.waves += 1
