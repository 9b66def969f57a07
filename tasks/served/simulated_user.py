"""A user played by a model: who answers the model's turns in a conversation (tau-bench style,
https://arxiv.org/abs/2406.12045).

    turn with a call ──▶ the environment's tools ──▶ results
    turn without     ──▶ the user's model        ──▶ what the user says next, or the stop marker

To its own model the user is the assistant, and the trained model the user. The user sees neither
thoughts, calls nor results. What it says is never trained on. Its seed follows from the
conversation, and replies are noted with the turns of the policy, so a resumed stage repeats what
was said; an answer of an API is also kept by its content. A user that gives no answer raises
UserFailed: the rollout is a failed one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from engines.rollout.records.journals import reply_as_before
from engines.types import (
    AssistantTurn,
    Environment,
    Episode,
    Message,
    Problem,
    Status,
    Step,
    Transcript,
)
from infra.errors import InputError, OutOfReach, TributaryError
from infra.processes.coroutines import waiting_for_turn
from rewards.judges.chat_api import ChatApi
from rewards.judges.judge_prompt import filled
from rewards.judges.served import AsksModel
from tasks.domain import USER, UserSpec

_GREETING = Message("user", "Hi! How can I help you today?")
"""most templates want the first turn to be a user's"""


class UserFailed(Exception):
    """The user said nothing that could be gone on with."""


class SaysNext(Protocol):
    async def __call__(self, problem: Problem, seed: int) -> str:
        """Return what the user says after `problem.messages`, as its model sees them. Raises
        TributaryError."""
        ...


class ServedUser:
    """A served role plays the user."""

    def __init__(self, user: UserSpec, model: AsksModel) -> None:
        self._user, self._model = user, model

    async def __call__(self, problem: Problem, seed: int) -> str:
        said, is_whole = await self._model.answer(
            problem,
            max_new_tokens=self._user.max_new_tokens,
            temperature=self._user.temperature,
            seed=seed,
            timeout_s=self._user.timeout_s,
        )
        if not is_whole:
            raise InputError("its turn was cut off or is broken; raise `user.max_new_tokens`")
        return said


class ExternalUser:
    """A model at an address plays the user."""

    def __init__(self, user: UserSpec, sharing: int) -> None:
        """Raises InputError as `ChatApi` does."""
        assert user.api is not None
        self._temperature = user.temperature
        self._api = ChatApi(
            user.api, user.timeout_s, sharing, title=USER, max_new_tokens=user.max_new_tokens
        )

    async def __call__(self, problem: Problem, seed: int) -> str:
        messages = [{"role": m.role, "content": m.content} for m in problem.messages]
        return await self._api.answer(
            messages, {"temperature": self._temperature, "seed": seed}, str.strip
        )

    async def close(self) -> None:
        await self._api.close()


class UserEnvironment:
    """Starts conversations with the user; `tools` is the environment that calls go to."""

    def __init__(self, user: UserSpec, says: SaysNext, tools: Environment | None) -> None:
        self._user, self._says, self._tools = user, says, tools

    async def start(self, problem: Problem) -> Episode:
        tools = await self._tools.start(problem) if self._tools is not None else None
        return _UserEpisode(self._user, self._says, tools, problem)


class _UserEpisode:
    def __init__(
        self, user: UserSpec, says: SaysNext, tools: Episode | None, problem: Problem
    ) -> None:
        self._user, self._says, self._tools, self._problem = user, says, tools, problem
        self._messages = [m for m in problem.messages if m.role in ("user", "assistant")]

    async def step(self, turn: AssistantTurn) -> Step:
        """Raises UserFailed, OutOfReach, and what the tools raise."""
        if turn.tool_calls and self._tools is not None:
            self._messages.append(turn.message())
            return await self._tools.step(turn)
        self._messages.append(turn.message())
        said = await self._said()
        if self._user.stop in said:
            return Step(done=True)
        message = Message("user", said)
        self._messages.append(message)
        return Step((message,))

    async def _said(self) -> str:
        try:
            system = filled(
                self._user.system, Transcript(self._problem, (), Status.COMPLETED, num_tokens=0)
            )
            asked = (Message("system", system), _GREETING, *_turned(self._messages))
            problem = replace(self._problem, messages=asked, tools=(), thinking=self._user.thinking)
            seed = _seed(problem)
            with waiting_for_turn():  # for `timeout_s`, or a place
                return await reply_as_before(seed, partial(self._heard, problem, seed))
        except OutOfReach:
            raise
        except (TributaryError, ValueError) as error:
            raise UserFailed(str(error)) from error

    async def _heard(self, problem: Problem, seed: int) -> str:
        if said := (await self._says(problem, seed)).strip():
            return said
        raise UserFailed("it said nothing")

    async def close(self) -> None:
        if self._tools is not None:
            await self._tools.close()


def _turned(messages: Sequence[Message]) -> list[Message]:
    """Return what was said, with the roles exchanged; turns that only call tools are not heard."""
    return [
        Message("user" if m.role == "assistant" else "assistant", m.content)
        for m in messages
        if m.content.strip()
    ]


def _seed(problem: Problem) -> int:
    """Return the same seed for the same conversation, whenever the user is asked."""
    said = "\0".join(f"{m.role}\0{m.content}" for m in problem.messages)
    return zlib.crc32(f"{problem.id}\0{said}".encode()) & 0x7FFF_FFFF
