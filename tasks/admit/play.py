"""One scripted episode of an environment, and what the domain's judge says of it."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engines.rollout.protocols import Judge
from engines.types import (
    AssistantTurn,
    Environment,
    Json,
    Message,
    Problem,
    ProtocolBreak,
    Status,
    Tool,
    ToolCall,
    Transcript,
)

Policy = Callable[[Sequence[Message]], AssistantTurn]
"""the next turn, from the messages after the prompt so far"""
NOTHING = AssistantTurn("", "", None, ())
MOST_WORDS = 200
"""of what was seen, that calls are made of"""
_WORD = re.compile(r"[^\s:,;()'\"]+")


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
        """Return what tools answered."""
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


def say(turns: Sequence[Message]) -> Policy:
    """The assistant turns of a solution, one after the other, then nothing."""
    own = [turn for turn in turns if turn.role == "assistant"]

    def policy(messages: Sequence[Message]) -> AssistantTurn:
        number = sum(message.role == "assistant" for message in messages)
        if number >= len(own):
            return NOTHING
        turn = own[number]
        return AssistantTurn(turn.content, turn.content, turn.reasoning, turn.tool_calls)

    return policy


def act_at_random(problem: Problem, seed: int, turns: int) -> Policy:
    """Calls of any tool with words that it has seen, for all but the last of `turns`; then a word
    as the answer."""
    rng = random.Random(f"{problem.id}/{seed}")

    def policy(messages: Sequence[Message]) -> AssistantTurn:
        words = words_of([*problem.messages, *messages])
        number = sum(message.role == "assistant" for message in messages)
        if not problem.tools or number + 1 >= turns:
            return AssistantTurn("", rng.choice(words) if words else "", None, ())
        tool = rng.choice(problem.tools)
        call = ToolCall(tool.name, {n: _value(k, words, rng) for n, k in tool.parameters.items()})
        return AssistantTurn("", "", None, (call,))

    return policy


def looks(tools: Sequence[Tool], words: Sequence[str]) -> Iterator[ToolCall]:
    """Yield every call that takes nothing or one word: what can be seen without a plan."""
    for tool in tools:
        kinds = list(tool.parameters.items())
        if not kinds:
            yield ToolCall(tool.name, {})
        elif len(kinds) == 1 and kinds[0][1] == "string":
            for word in words:
                yield ToolCall(tool.name, {kinds[0][0]: word})


def words_of(messages: Sequence[Message]) -> list[str]:
    """Distinct words and lines of messages, in the order of their first appearance."""
    found: dict[str, None] = {}
    for message in messages:
        for line in message.content.splitlines():
            found[line] = None
            found.update(dict.fromkeys(_WORD.findall(line)))
    return [text for text in found if text][:MOST_WORDS]


def _value(kind: str, words: Sequence[str], rng: random.Random) -> Json:
    match kind:
        case "string":
            return rng.choice(words) if words else ""
        case "integer":
            return rng.randint(0, 20)
        case "number":
            return rng.random()
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return []
        case _:
            return {}
