"""What a wire format is: one way in which clients ask and are answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel

from engines.types import AssistantTurn, Json, Message, Tool

MOST_PARTS = 10_000
"""messages, pieces of them and tools of a conversation"""
MODEL = "policy"
"""the name of the model that a session is given, whatever a request asks for"""


class WireFormat(Protocol):
    """Pure functions between bytes and what they say."""

    @property
    def path(self) -> str:
        """Below the address, e.g. `/v1/messages`."""
        ...

    @property
    def keeps_answers(self) -> bool:
        """Return whether a request may name an earlier answer instead of sending what led to it."""
        ...

    @property
    def body(self) -> type[BaseModel]:
        """Return what of a request is read."""
        ...

    def request(self, body: bytes) -> Request:
        """Raises Refusal."""
        ...

    def answer_id(self, answer: Answer) -> str: ...

    def reply(self, answer: Answer) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def events(self, answer: Answer, request: Request) -> Iterator[bytes]:
        """The server-sent events of one that is."""
        ...

    def error(self, refusal: Refusal) -> bytes:
        """The body of an error."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """Return an error in a stream that has begun."""
        ...

    def sign_of_life(self) -> bytes:
        """Return what a stream says while the policy thinks."""
        ...


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
        """Return the id of the call at this position."""
        return f"call_{self.number}_{position}"
