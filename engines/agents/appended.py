"""What a request adds to the tokens before it: only new messages are rendered and tokenized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from engines.agents.trajectory import Turn
from engines.rollout.protocols import ChatFormat
from engines.types import Message, Problem


def appended_ids(
    chat: ChatFormat, problem: Problem, turn: Turn, messages: Sequence[Message]
) -> list[int]:
    """Ids that follow `turn` (or begin, after a root) where `messages` come and then a turn of the
    policy. Raises InputError where the chat template refuses them."""
    if turn.parent is None:
        return chat.prompt_ids(replace(problem, messages=tuple(messages)))
    said, ids = turn.said, list[int]()
    last = int(turn.tokens[-1])
    for context, written in _exchanges(messages):
        ids += chat.continuation_ids(problem, [said], context, last)
        if written is not None:
            ids += chat.turn_ids(problem, written)
            said, last = written, ids[-1]
    return ids


def _exchanges(messages: Sequence[Message]) -> Iterator[tuple[list[Message], Message | None]]:
    """Messages of others with the turn that follows them, which nobody sampled here; the last are
    followed by none."""
    context: list[Message] = []
    for is_said, run in groupby(messages, lambda message: message.role == "assistant"):
        if not is_said:
            context = list(run)
            continue
        for message in run:
            yield context, message
            context = []
    yield context, None
