"""One scripted episode of an environment, and what the domain's judge says of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from engines.rollout.protocols import Judge
from engines.types import Environment, Message, Problem, ProtocolBreak, Status, Transcript
from tasks.admit.policies import Policy


@dataclass(frozen=True, slots=True)
class Played:
    """A finished episode: its turns after the prompt, its outcome from 0 to 1, and why."""

    messages: tuple[Message, ...]
    outcome: float
    reason: str
    seconds: float
    fault: str = ""
    """what broke; empty: the environment and its judge did their work"""
    is_late: bool = False
    """whether it was ended because its time was over"""

    @property
    def told(self) -> list[str]:
        """What tools answered."""
        return [message.content for message in self.messages if message.role == "tool"]


async def play(
    environment: Environment | None,
    judge: Judge,
    problem: Problem,
    policy: Policy,
    *,
    turns: int,
    seconds: float,
) -> Played:
    """Plays until the policy calls no tool, the environment is done, or `turns` are over; late
    after `seconds`."""
    messages: list[Message] = []
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            status = await _converse(environment, problem, policy, turns, messages)
            if status is Status.MALFORMED:
                return Played(tuple(messages), 0.0, "malformed", time.monotonic() - began)
            transcript = Transcript(problem, tuple(messages), status, 1)
            judged = await judge.judge(transcript)
    except TimeoutError:
        return Played(tuple(messages), 0.0, "", seconds, is_late=True)
    except Exception as error:  # the environment is a user's code: its fault is a finding
        fault = f"{type(error).__name__}: {error}"
        return Played(tuple(messages), 0.0, "", time.monotonic() - began, fault)
    took = time.monotonic() - began
    if judged.failed:
        return Played(tuple(messages), 0.0, "", took, judged.reason)
    outcome = judged.breakdown.get("outcome", 0.0)
    return Played(tuple(messages), outcome, judged.reason, took)


async def _converse(
    environment: Environment | None,
    problem: Problem,
    policy: Policy,
    turns: int,
    messages: list[Message],
) -> Status:
    episode = await environment.start(problem) if environment is not None else None
    try:
        for _ in range(turns):
            turn = policy(messages)
            messages.append(turn.message())
            if episode is None:
                return Status.COMPLETED
            try:
                step = await episode.step(turn)
            except ProtocolBreak:
                return Status.MALFORMED
            messages.extend(step.messages)
            if step.done or not step.messages:
                return Status.COMPLETED
        return Status.TRUNCATED
    finally:
        if episode is not None:
            await episode.close()
