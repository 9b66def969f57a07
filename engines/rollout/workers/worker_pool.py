"""WorkerPool: rolls groups out in rollout workers, as `Roller` does it in the stage's process.

    roll_group ─▶ the worker with the fewest groups ─▶ its news ─▶ on_finished, turns, the group
                          └ lost: another one rolls what it had not told; a new one takes its place

Draws hang on seeds and positions, so who rolls a group, and how often, changes no bit of it. What
is told by a worker that dies later is kept, in its `AssignedGroup`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from engines.algorithms.spec import Keep
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.drivers.pace import Pace
from engines.rollout.protocols import ChatFormat, ThoughtBudget
from engines.rollout.records.journals import Finished, TicketTurns
from engines.rollout.roller import Window
from engines.rollout.workers.assigned_group import AssignedGroup
from engines.rollout.workers.worker import News, WorkerHandle, WorkerLost
from engines.types import Problem, Rollout
from infra.errors import EngineError, InputError
from infra.processes.coroutines import is_told_to_end

MAX_TRIES = 3
"""workers that may be lost with a group before the group counts as what ends them"""

MAX_LOSSES = 5
"""losses of a worker and of those that took its place, none of which finished a group"""

_PAUSE_S = 0.5
"""before a worker is replaced; longer after each further loss"""

_log = logging.getLogger(__name__)

StartWorker: TypeAlias = Callable[[int], Awaitable[WorkerHandle]]
"""by its position; raises WorkerLost, InputError"""


class TurnCount(Protocol):
    """How many turns are under way."""

    def change(self, by: int) -> None: ...


class ServersOfStage(Protocol):
    """What the stage knows of the servers: its own `GenerationClient` has it."""

    on_trouble: Callable[[], object]
    must_wait: Callable[[], bool]

    @property
    def refusal(self) -> Exception | None: ...

    @property
    def in_flight(self) -> TurnCount: ...


@dataclass(slots=True, eq=False)
class _Place:
    """The place of one worker, and of those that replace it."""

    position: int
    worker: WorkerHandle | None = None
    """None: it is being replaced, or was given up"""
    groups: dict[int, AssignedGroup] = field(default_factory=dict[int, AssignedGroup])
    """by the numbers of their requests"""
    turns_under_way: int = 0
    news: asyncio.Future[News] | None = None
    """what the worker is asked for"""
    losses: int = 0
    """since a group was finished here"""


class WorkerPool:
    """The workers of one stage: `open` it before use, and `close` it. In one event loop."""

    def __init__(
        self,
        start: StartWorker,
        count: int,
        *,
        servers: ServersOfStage,
        chat: ChatFormat,
        window: Window | None = None,
    ) -> None:
        self.window = window or Window()
        self._start = start
        self._places = [_Place(position) for position in range(count)]
        self._servers = servers
        self._chat = chat
        self._numbers = itertools.count()
        self._waiting: list[AssignedGroup] = []
        """while there is no worker"""
        self._fault: BaseException | None = None
        """why there will be none any more"""
        self._last_loss = ""
        self._assigned: dict[AssignedGroup, tuple[_Place, int]] = {}
        """which place has a group, under which number"""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start all workers. Raises InputError for a part that cannot be built, EngineError."""
        starts = [self._start(place.position) for place in self._places]
        started = await asyncio.gather(*starts, return_exceptions=True)
        for place, worker in zip(self._places, started, strict=True):
            if not isinstance(worker, BaseException):
                place.worker = worker
        for worker in started:
            if isinstance(worker, WorkerLost):
                raise EngineError(f"a rollout worker did not start: {worker}")
            if isinstance(worker, BaseException):
                raise worker
        for place in self._places:
            self._spawn(self._keep(place))

    async def close(self) -> None:
        """End all workers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        workers = [place.worker for place in self._places if place.worker is not None]
        for place in self._places:
            place.worker = None
        await asyncio.gather(*[worker.end() for worker in workers])

    async def roll_group(
        self,
        domain: LiveDomain,
        problem: Problem,
        size: int,
        *,
        temperature: float,
        group_id: str,
        seed_name: str,
        known: Mapping[str, Finished] = MappingProxyType({}),
        on_finished: Callable[[Finished], None] = lambda made: None,
        turns: TicketTurns | None = None,
        top_p: float = 1.0,
        keep: Keep | None = None,
        thought: ThoughtBudget | None = None,
        pace: Pace | None = None,
    ) -> list[Rollout]:
        """See `Roller.roll_group`; of `domain` a worker has its own. Raises EngineError."""
        if (fault := self._fault or self._servers.refusal) is not None:
            raise fault
        ids = [f"{group_id}#{index}" for index in range(size)]
        found = {name: known[name] for name in ids if name in known}
        group = AssignedGroup(
            domain, problem, size, temperature, group_id, seed_name, found, on_finished, turns,
            top_p, keep, thought, pace,
        )  # fmt: skip
        if pace is not None:
            pace.on_round = lambda: self._begin_round(group, pace.round)
        self._assign(group)
        try:
            await group.over
        finally:
            self._forget(group)
        return group.rollouts(self._chat)

    def _assign(self, group: AssignedGroup) -> None:
        """Have the worker with the fewest groups roll it; if there is none, it waits."""
        if self._fault is not None:
            group.fail(self._fault)
            return
        living = [place for place in self._places if place.worker is not None]
        if not living:
            self._waiting.append(group)
            return
        place = min(living, key=lambda place: len(place.groups))
        number = next(self._numbers)
        place.groups[number] = group
        self._assigned[group] = place, number
        assert place.worker is not None
        self._spawn(self._send(place, place.worker, number, group))

    async def _send(
        self, place: _Place, worker: WorkerHandle, number: int, group: AssignedGroup
    ) -> None:
        if place.groups.get(number) is not group:  # it was cancelled at once
            return
        try:
            await worker.roll(group.request(number))
        except WorkerLost as error:
            self._lose(place, worker, error)

    def _begin_round(self, group: AssignedGroup, round: int) -> None:
        """A worker that has not got it yet is told with the request."""
        if (assigned := self._assigned.get(group)) is not None:
            place, number = assigned
            if place.worker is not None:
                place.worker.begin_round(number, round)

    def _forget(self, group: AssignedGroup) -> None:
        """See that nothing goes on of one that is over or not wanted any more."""
        if group in self._waiting:
            self._waiting.remove(group)
        if (assigned := self._assigned.pop(group, None)) is not None:
            place, number = assigned
            if place.groups.pop(number, None) and place.worker is not None:
                place.worker.cancel(number)

    async def _keep(self, place: _Place) -> None:
        """Listen to the worker of a place; replace it when it is lost, as long as that helps."""
        while place.losses < MAX_LOSSES:
            worker = place.worker
            try:
                if worker is None:
                    worker = place.worker = await self._start(place.position)
                    self._assign_waiting()
                await self._listen(place, worker)
            except WorkerLost as error:
                self._lose(place, worker, error)
            except InputError as error:  # a part that could be built before cannot be any more
                self._give_up(error)
                return
            if worker is not None:
                await worker.end()
            await asyncio.sleep(_PAUSE_S * place.losses)
        if all(other.losses >= MAX_LOSSES for other in self._places):
            reason = f"every rollout worker was lost {MAX_LOSSES} times in a row"
            self._give_up(EngineError(f"{reason}; the last time: {self._last_loss}"))

    async def _listen(self, place: _Place, worker: WorkerHandle) -> None:
        """Take up what it tells, until it is lost."""
        while place.worker is worker:
            place.news = asyncio.ensure_future(worker.news(self._servers.must_wait()))
            try:
                news = await place.news
            except asyncio.CancelledError:
                if is_told_to_end():
                    raise
                return  # lost: nothing waits for its news any more
            if place.worker is worker:
                self._take(place, news)
            if (refusal := self._servers.refusal) is not None:
                self._fail_all(refusal)

    def _take(self, place: _Place, news: News) -> None:
        self._count_turns(place, news.turns_under_way)
        if news.is_in_trouble:
            self._servers.on_trouble()
        for turn in news.turns:
            if (group := place.groups.get(turn.number)) is not None:
                group.take_turn(turn)
        for rollout in news.rollouts:
            if (group := place.groups.get(rollout.number)) is not None:
                group.take_rollout(rollout)
        for rests in news.rests:
            if (group := place.groups.get(rests.number)) is not None:
                group.take_rest(rests)
        for over in news.over:
            if (group := place.groups.pop(over.number, None)) is not None:
                group.take_end(over)
                place.losses = 0

    def _lose(self, place: _Place, worker: WorkerHandle | None, error: WorkerLost) -> None:
        """Once for each loss, whoever notices it first."""
        if place.worker is not worker:
            return
        _log.warning("rollout worker %d was lost: %s", place.position, error)
        place.worker, place.losses = None, place.losses + 1
        if place.news is not None:  # it may keep silent for long
            place.news.cancel()
        self._last_loss = str(error)
        self._count_turns(place, 0)
        groups, place.groups = list(place.groups.values()), {}
        for group in groups:
            group.losses += 1
            if group.losses == MAX_TRIES:
                told = f"{group.group_id}: {MAX_TRIES} rollout workers were lost while they rolled"
                group.fail(EngineError(f"{told} it; the last one: {error}"))
            else:
                self._assign(group)

    def _count_turns(self, place: _Place, now: int) -> None:
        self._servers.in_flight.change(now - place.turns_under_way)
        place.turns_under_way = now

    def _assign_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for group in waiting:
            self._assign(group)

    def _give_up(self, fault: BaseException) -> None:
        self._fault = fault
        self._fail_all(fault)

    def _fail_all(self, error: BaseException) -> None:
        for group in [*self._waiting, *(g for p in self._places for g in p.groups.values())]:
            group.fail(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._give_up(error)  # a fault of ours: nobody else would see it
