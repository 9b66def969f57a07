"""What a request says and what is answered, in no particular wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.types import AssistantTurn, Json, Message, Tool

MOST_PARTS = 10_000
"""messages, pieces of them and tools of a conversation"""
MODEL = "policy"
"""the name of the model that a session is given, whatever a request asks for"""


class Refusal(Exception):
    """A request that is not answered: its HTTP status, and what the client is told."""

    def __init__(self, status: int, message: str, code: str = "invalid_request") -> None:
        """`code`: a short name of the reason, e.g. `session_over`."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class Request:
    """A conversation that the policy is to continue."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    is_streamed: bool = False
    asked: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """sampling parameters that it names: recorded, not followed"""
    wants_usage: bool = False
    """whether a stream is to end with the counts of tokens (Chat Completions)"""
    previous: str = ""
    """id of the answer before its messages, where they are only the new ones (Responses)"""
    size: int = 0
    """bytes that it came in"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A turn of the policy, for a client."""

    number: int
    """of the turn in its session"""
    said: AssistantTurn
    is_cut_off: bool
    prompt_tokens: int
    new_tokens: int

    def call_id(self, position: int) -> str:
        """Of the call at this position."""
        return f"call_{self.number}_{position}"
