"""What the model itself wrote in a transcript."""

from __future__ import annotations

from engines.types import Message, Transcript


def assistant_turns(transcript: Transcript) -> list[Message]:
    return [message for message in transcript.messages if message.role == "assistant"]
