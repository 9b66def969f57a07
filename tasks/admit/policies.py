"""Scripted players of an environment: they need no model."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence

from engines.types import AssistantTurn, Json, Message, Problem, Tool, ToolCall

Policy = Callable[[Sequence[Message]], AssistantTurn]
"""the next turn, from the messages after the prompt so far"""
NOTHING = AssistantTurn("", "", None, ())
MOST_WORDS = 200
"""of what was seen, that calls are made of"""
_WORD = re.compile(r"[^\s:,;()'\"]+")


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
    """Every call that takes nothing or one word: what can be seen without a plan."""
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
