"""RolloutWorker: rolls groups out for a stage in another process, and tells what became of them.

What a stage and its rollout workers tell each other is defined here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from engines.algorithms.spec import Keep
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.drivers.pace import Pace, Unfinished
from engines.rollout.protocols import ChatFormat, Generate, ThoughtBudget
from engines.rollout.records.journals import (
    Finished,
    NotedTurn,
    Place,
    TicketTurns,
    pack_rollouts,
    pack_turns,
    unpack_rollouts,
    unpack_turns,
)
from engines.rollout.roller import Roller, written_text
from engines.types import Generation, Problem, Sampling, TokenIds
from infra.errors import TributaryError
from infra.processes.coroutines import end_tasks, is_told_to_end
from infra.processes.outages import Outage, outages


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
    only_outcome: bool = False
    """see `LiveDomain.of_outcome`"""
    top_p: float = 1.0
    keep: Keep | None = None
    thought: ThoughtBudget | None = None
    round_tokens: int | None = None
    """see `Pace`; None: it has none"""
    round: int = 1


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
class RequestRests:
    """All of its rollouts that are not over wait for the next round."""

    number: int
    round: int
    """the present one"""
    unfinished: Unfinished


@dataclass(frozen=True, slots=True)
class RequestOver:
    """Nothing follows of a request: all of its rollouts were told before, or it failed."""

    number: int
    recovered_tokens: int
    """of the turns that were not sampled again"""
    error: Exception | None


@dataclass(frozen=True, slots=True)
class News:
    """What happened at one worker since it was last asked."""

    rollouts: tuple[NewRollout, ...] = ()
    turns: tuple[NewTurn, ...] = ()
    rests: tuple[RequestRests, ...] = ()
    over: tuple[RequestOver, ...] = ()
    turns_under_way: int = 0
    """now, at the servers"""
    is_in_trouble: bool = False
    """whether a turn failed and is tried again"""
    outages: tuple[Outage, ...] = ()
    """services of others that its rewards wait for now"""


class WorkerLost(Exception):
    """A worker died, or does not answer. What it had not told is lost."""


class WorkerHandle(Protocol):
    """A worker, as the stage holds it."""

    async def roll(self, request: RollRequest) -> None:
        """Have it begin. Raises WorkerLost."""
        ...

    def begin_round(self, number: int, round: int) -> None:
        """Have a request's rollouts go on to that round; returns at once."""
        ...

    def cancel(self, number: int) -> None:
        """Have it end a request; returns at once."""
        ...

    async def news(self, is_changing: bool) -> News:
        """Return what happened since the last call; waits for it for a moment. `is_changing`:
        whether lost servers have to wait for their weights. Raises WorkerLost."""
        ...

    async def end(self) -> None:
        """End its process and what it started. Takes seconds at most, and never raises."""
        ...


_CANCEL_S = 5.0
"""what rollouts that are ended may take to close their environments"""


class TurnClient(Protocol):
    """What asks the servers: `GenerationClient` is one."""

    on_trouble: Callable[[], object]
    must_wait: Callable[[], bool]

    @property
    def generate(self) -> Generate: ...


class RolloutWorker:
    """In one event loop. Holds nothing that a stage could not have made again."""

    def __init__(
        self,
        *,
        client: TurnClient,
        chat: ChatFormat,
        domains: Sequence[LiveDomain],
        context_length: int,
        seed: int,
    ) -> None:
        """`seed`: the stage's."""
        self._client = client
        self._chat = chat
        self._domains = {domain.name: domain for domain in domains}
        self._roller = Roller(
            generate=self._generate, chat=chat, context_length=context_length, seed=seed
        )
        self._rolls: dict[int, asyncio.Task[None]] = {}
        self._rollouts: list[NewRollout] = []
        self._turns: list[NewTurn] = []
        self._paces: dict[int, Pace] = {}
        self._rests: list[RequestRests] = []
        self._over: list[RequestOver] = []
        self._turns_under_way = 0
        self._is_in_trouble = False
        self._is_changing = False
        self._happened = asyncio.Event()
        client.on_trouble = self._trouble
        client.must_wait = lambda: self._is_changing

    def roll(self, request: RollRequest) -> None:
        """Begin, and return at once."""
        name = f"request {request.number}"
        task = asyncio.create_task(self._roll(request), name=name)
        self._rolls[request.number] = task
        task.add_done_callback(lambda _: self._rolls.pop(request.number, None))

    def begin_round(self, number: int, round: int) -> None:
        """Let a request's rollouts go on to that round, if it is not over."""
        if (pace := self._paces.get(number)) is not None:
            pace.begin_round(round)

    def cancel(self, number: int) -> None:
        """End a request's rollouts. None is told any more, and not that it is over."""
        if (task := self._rolls.get(number)) is not None:
            task.cancel()

    async def news(self, is_changing: bool, within_s: float) -> News:
        """Return what happened since the last call; empty if that is nothing for so many
        seconds."""
        self._is_changing = is_changing
        with suppress(TimeoutError):
            await asyncio.wait_for(self._happened.wait(), within_s)
        self._happened.clear()
        news = News(
            rollouts=tuple(self._rollouts),
            turns=tuple(self._turns),
            rests=tuple(self._rests),
            over=tuple(self._over),
            turns_under_way=self._turns_under_way,
            is_in_trouble=self._is_in_trouble,
            outages=tuple(outages()),
        )
        self._rollouts, self._turns, self._rests, self._over = [], [], [], []
        self._is_in_trouble = False
        return news

    async def close(self) -> None:
        """End all requests."""
        await end_tasks(list(self._rolls.values()), _CANCEL_S)

    async def _roll(self, request: RollRequest) -> None:
        recovered: list[int] = []
        error: Exception | None = None
        try:
            known = {made.rollout_id: made for made in unpack_rollouts(request.known)}
            domain = self._domains[request.domain]
            await self._roller.roll_group(
                domain.of_outcome() if request.only_outcome else domain,
                request.problem,
                request.size,
                temperature=request.temperature,
                group_id=request.group_id,
                seed_name=request.seed_name,
                known=known,
                on_finished=lambda made: self._finished(request, made),
                turns=self._turns_of(request, recovered),
                top_p=request.top_p,
                keep=request.keep,
                thought=request.thought,
                pace=self._pace_of(request),
            )
        except TributaryError as raised:
            error = raised
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            error = TributaryError("a task that the rollouts waited for was cancelled")
        except Exception as raised:  # it may not pickle, and its class may not exist there
            error = TributaryError(f"{type(raised).__name__}: {raised}")
        finally:
            self._paces.pop(request.number, None)
        self._over.append(RequestOver(request.number, sum(recovered), error))
        self._happened.set()

    def _finished(self, request: RollRequest, made: Finished) -> None:
        text = written_text(self._chat, made)
        self._rollouts.append(NewRollout(request.number, pack_rollouts([made]), text))
        self._happened.set()

    def _turns_of(self, request: RollRequest, recovered: list[int]) -> TicketTurns:
        known: Mapping[Place, NotedTurn] = {t.place: t for t in unpack_turns(request.turns)}

        def keep(turn: NotedTurn) -> None:
            if request.wants_turns:
                self._turns.append(NewTurn(request.number, pack_turns([turn])))
                self._happened.set()

        # The stage sends only those that may be used.
        return TicketTurns(known, lambda versions: True, keep, recovered.append)

    def _pace_of(self, request: RollRequest) -> Pace | None:
        if request.round_tokens is None:
            return None

        def rests() -> None:
            told = RequestRests(request.number, pace.round, pace.unfinished)
            self._rests.append(told)
            self._happened.set()

        pace = self._paces[request.number] = Pace(request.round_tokens, request.round)
        pace.on_rest = rests
        return pace

    async def _generate(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        self._count(1)
        try:
            return await self._client.generate(prompt_ids, sampling)
        finally:
            self._count(-1)

    def _count(self, by: int) -> None:
        """Where servers become busy or idle, the stage is told at once."""
        before, self._turns_under_way = self._turns_under_way, self._turns_under_way + by
        if not before or not self._turns_under_way:
            self._happened.set()

    def _trouble(self) -> None:
        self._is_in_trouble = True
        self._happened.set()
