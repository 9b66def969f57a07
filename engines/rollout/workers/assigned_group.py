"""AssignedGroup: what a stage knows of a group that a rollout worker rolls out.

request(number) ──▶ a worker ──▶ turns, rollouts, rests, the end
     ▲                 └ lost: what it told of is kept, and the next one is told what is left
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from engines.algorithms.spec import Keep
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.drivers.pace import Pace
from engines.rollout.protocols import ChatFormat, ThoughtBudget
from engines.rollout.records.journals import (
    Finished,
    NotedTurn,
    TicketTurns,
    pack_rollouts,
    pack_turns,
    unpack_rollouts,
    unpack_turns,
)
from engines.rollout.roller import rollout_of, written_text
from engines.rollout.workers.worker import (
    NewRollout,
    NewTurn,
    RequestOver,
    RequestRests,
    RollRequest,
)
from engines.types import Problem, Rollout
from infra.errors import InputError


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class AssignedGroup:
    """Made in an event loop."""

    domain: LiveDomain
    problem: Problem
    size: int
    temperature: float
    group_id: str
    seed_name: str
    known: dict[str, Finished]
    """rollouts that need not be sampled again, by id: also those that a worker told of"""
    on_finished: Callable[[Finished], None]
    turns: TicketTurns | None
    top_p: float = 1.0
    keep: Keep | None = None
    thought: ThoughtBudget | None = None
    pace: Pace | None = None
    over: asyncio.Future[None] = field(default_factory=_future)
    losses: int = 0
    """of workers that rolled it"""
    _texts: dict[str, str] = field(default_factory=dict[str, str])
    """of rollouts that a worker told of, by id"""
    _told_turns: list[NotedTurn] = field(default_factory=list[NotedTurn])

    def request(self, number: int) -> RollRequest:
        """For a worker, who is told what is left to do."""
        open_ids = {name for name in self._ids() if name not in self.known}
        noted = self.turns.usable(open_ids) if self.turns is not None else []
        noted += [turn for turn in self._told_turns if turn.rollout in open_ids]
        return RollRequest(
            number=number,
            domain=self.domain.name,
            problem=self.problem,
            size=self.size,
            temperature=self.temperature,
            group_id=self.group_id,
            seed_name=self.seed_name,
            known=pack_rollouts(list(self.known.values())),
            turns=pack_turns(noted),
            wants_turns=self.turns is not None,
            only_outcome=self.domain.only_outcome,
            top_p=self.top_p,
            keep=self.keep,
            thought=self.thought,
            round_tokens=self.pace.tokens if self.pace is not None else None,
            round=self.pace.round if self.pace is not None else 1,
        )

    def take_turn(self, turn: NewTurn) -> None:
        for noted in unpack_turns(turn.packed):
            self._told_turns.append(noted)
            if self.turns is not None:
                self.turns.keep(noted)

    def take_rollout(self, rollout: NewRollout) -> None:
        (made,) = unpack_rollouts(rollout.packed)
        self.known[made.rollout_id] = made
        self._texts[made.rollout_id] = rollout.text
        self.on_finished(made)

    def take_rest(self, rests: RequestRests) -> None:
        if self.pace is not None:
            self.pace.rested(rests.round, rests.unfinished)

    def take_end(self, over: RequestOver) -> None:
        if self.turns is not None:
            self.turns.count_recovered(over.recovered_tokens)
        if over.error is not None:
            self.fail(over.error)
        elif not self.over.done():
            self.over.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    def rollouts(self, chat: ChatFormat) -> list[Rollout]:
        """All of them, once it is over without an error."""
        made = [self.known[name] for name in self._ids()]
        problem = self.problem
        with suppress(InputError):  # its rollouts say what keeps the template from writing it
            problem = chat.decided(problem)
        return [
            rollout_of(problem, m, self._texts.get(m.rollout_id) or written_text(chat, m))
            for m in made
        ]

    def _ids(self) -> list[str]:
        return [f"{self.group_id}#{index}" for index in range(self.size)]
