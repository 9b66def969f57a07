"""Conversation: the driver that is built in. The model and an environment take turns.

How a rollout ends:
    the model ends its turn and calls no tool, or the environment is done   COMPLETED
    token, turn or context budget ran out                                   TRUNCATED
    the turn broke the format (a bad tool call, an unclosed thought)        MALFORMED, reward 0
    the engine aborted, or answered nothing                                 ABORTED
    the environment raised                                                  FAILED
"""

from __future__ import annotations

import contextlib

from engines.rollout.drivers.session import TokenSession
from engines.rollout.drivers.session_host import End, SessionHost
from engines.types import (
    AssistantTurn,
    Environment,
    Episode,
    Message,
    Problem,
    ProtocolBreak,
    Rollout,
    Status,
)
from infra.errors import InfrastructureError
from infra.processes.part_process import PartFailed


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
