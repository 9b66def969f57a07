"""What a wire format is: one way in which clients ask and are answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from pydantic import BaseModel

from engines.agents.wire.request import Answer, Refusal, Request


class WireFormat(Protocol):
    """Pure functions between bytes and what they say."""

    @property
    def path(self) -> str:
        """Below the address, e.g. `/v1/messages`."""
        ...

    @property
    def keeps_answers(self) -> bool:
        """Whether a request may name an earlier answer instead of sending what led to it."""
        ...

    @property
    def body(self) -> type[BaseModel]:
        """What of a request is read."""
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
        """An error in a stream that has begun."""
        ...

    def sign_of_life(self) -> bytes:
        """What a stream says while the policy thinks."""
        ...
