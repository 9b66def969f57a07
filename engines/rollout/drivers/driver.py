"""Drivers: what lets the policy take turns in a rollout; and a recipe's domain, ready for rollouts.

The driver that is built in is `Conversation`, in which the model and an environment take turns. How
its rollout ends:

    the model ends its turn and calls no tool, or the environment is done   COMPLETED
    token, turn or context budget ran out                                   TRUNCATED
    the turn broke the format (a bad tool call, an unclosed thought)        MALFORMED, reward 0
    the engine aborted, or answered nothing                                 ABORTED
    the environment raised                                                  FAILED
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engines.rollout.drivers.session import TokenSession
from engines.rollout.drivers.session_host import End, SessionHost
from engines.rollout.protocols import DRIVERS, GroupJudge, Judge
from engines.types import (
    AssistantTurn,
    Curriculum,
    Environment,
    Episode,
    Message,
    Problem,
    ProtocolBreak,
    Rollout,
    Status,
)
from infra.errors import InfrastructureError
from infra.hooks import construct_with, require_methods, resolve
from infra.processes.part_process import PartFailed


class Driver(Protocol):
    """What runs one rollout: it opens sessions, has the policy take turns, and finishes.

    What it raises makes the rollout a failed one, except EngineError, which it must let through.
    """

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        """`sessions.finish(...)`, after at least one turn."""
        ...


@dataclass(frozen=True, slots=True)
class LiveDomain:
    """A recipe's domain, built: where problems come from, what rolls them out, who judges."""

    name: str
    curriculum: Curriculum
    judge: Judge
    driver: Driver
    max_new_tokens: int
    """generated tokens of one rollout, over all its turns"""
    driver_timeout_s: float | None = None
    """what the driver may take between two turns; None: its own parts have their limits"""
    group_judge: GroupJudge | None = None
    """who judges all rollouts of a problem together, after `judge`; None: nobody does"""
    outcome_judge: Judge | None = None
    """who says the outcome, and what reward models give; None: `judge` does"""
    only_outcome: bool = False
    """whether `judge` is the outcome's"""

    def of_outcome(self) -> LiveDomain:
        """For scores: a judge or a program of yours costs calls and time, and where it gives no
        verdict would take the outcome with it."""
        judge = self.outcome_judge or self.judge
        return replace(self, judge=judge, group_judge=None, only_outcome=True)


class Conversation:
    """One session a rollout. Stateless between rollouts."""

    def __init__(self, environment: Environment | None, max_turns: int = 1) -> None:
        """Without an environment one turn is the whole rollout."""
        self._environment = environment
        self._max_turns = max_turns if environment is not None else 1

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        session = sessions.open(sessions.prompt_ids)
        messages: list[Message] = []
        end = await self._converse(problem, sessions, session, messages)
        return sessions.finish(end, messages)

    async def _converse(
        self,
        problem: Problem,
        sessions: SessionHost,
        session: TokenSession,
        messages: list[Message],
    ) -> End:
        """Take turns until the end; appends to `session` and `messages`."""
        episode: Episode | None = None
        try:
            for number in range(self._max_turns):
                is_last = number + 1 == self._max_turns
                turn = await sessions.turn(session, is_last=is_last)
                if turn.said is not None:
                    messages.append(turn.said.message())
                if turn.end is not None:
                    return turn.end
                if self._environment is None:
                    return End(Status.COMPLETED)
                assert turn.said is not None
                try:
                    if episode is None:
                        episode = await self._environment.start(problem)
                    over = await _react(problem, sessions, session, messages, episode, turn.said)
                except InfrastructureError:
                    raise
                except ProtocolBreak as broken:
                    return End(Status.MALFORMED, str(broken))
                except PartFailed as error:
                    return End(Status.FAILED, f"environment {error}")
                except Exception as error:  # the environment is a user's code: its fault is data
                    return End(Status.FAILED, f"environment: {type(error).__name__}: {error}")
                if over:
                    return End(Status.COMPLETED)
            return End(Status.TRUNCATED, f"{self._max_turns} turns are used up")
        finally:
            if episode is not None:
                with contextlib.suppress(Exception):  # how it ended is decided already
                    await episode.close()


async def _react(
    problem: Problem,
    sessions: SessionHost,
    session: TokenSession,
    messages: list[Message],
    episode: Episode,
    said: AssistantTurn,
) -> bool:
    """Hand the turn to the environment; append what it answers. True when it is over."""
    step = await episode.step(said)
    new = step.messages
    if step.done or not new:
        messages.extend(new)
        return True
    last = int(session.tokens[-1])
    session.extend(sessions.chat.continuation_ids(problem, messages, new, last))
    messages.extend(new)
    return False


def build(
    name: str, options: Mapping[str, Any], environment: Environment | None, max_turns: int
) -> Driver:
    """The driver `name` (built in, or `module:attribute`) made with its options, and with the
    domain's `environment` and `max_turns` where its constructor has parameters of these names.

    Raises `InputError` for an unknown name, a path that does not lead to a driver, or options that
    it does not take.
    """
    factory = resolve("driver", name, DRIVERS)
    offered = {"environment": environment, "max_turns": max_turns}
    refusal = "the driver gets the domain's"
    driver = construct_with("driver", name, factory, options, offered, refusal=refusal)
    require_methods("driver", name, driver, ("run",))
    return driver
