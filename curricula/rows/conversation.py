"""A row as a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.types import Message, Tool


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one row says."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    weight: float = 1.0
    """factor of its loss"""
    untrained: frozenset[int] = frozenset()
    """places of the assistant's messages that are only read"""
    layout: str = field(default="", compare=False)
    """what the row looks like, for a person"""
    unread: frozenset[str] = field(default=frozenset(), compare=False)
    """columns, and fields inside them, that say something and change nothing"""


def fault_of(messages: Sequence[Message]) -> str:
    """What keeps messages from being a conversation that can be learned; empty for none."""
    for at, message in enumerate(messages):
        if message.reasoning and message.content.lstrip().startswith("<think>"):
            return f"messages[{at}]: has a thought beside its text, and one in it; leave one out"
    return _fault_of_order(messages)


def _fault_of_order(messages: Sequence[Message]) -> str:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        return "the assistant says nothing"
    if roles[0] == "assistant":
        return "the assistant speaks first; there is nothing that it answers"
    if roles[-1] != "assistant":
        return f"the last message is not the assistant's but of role {roles[-1]}"
    for at, role in enumerate(roles):
        if role == "assistant" and roles[at - 1] == "assistant":
            return f"messages[{at - 1}] and messages[{at}] are both the assistant's"
        if role == "system" and at > 0:
            return f"messages[{at}]: a system message comes first or not at all"
        if role == "tool" and not (roles[at - 1] == "tool" or messages[at - 1].tool_calls):
            return f"messages[{at}]: a tool answers, but was not called"
    return ""
