"""What a request adds to the tokens before it; messages that differ in form only mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from engines.rollout.protocols import ChatFormat
from engines.types import Json, Message, Problem
from infra.json_text import json_bytes
from infra.shown_text import normal_form

if TYPE_CHECKING:
    from engines.agents.trajectory import Turn

_EXACT = 2**53
"""whole numbers up to this are told apart by everybody who reads JSON"""
Meaning: TypeAlias = tuple[str, str, tuple[tuple[str, bytes], ...]]
"""role, normal text, and the calls: name and arguments as canonical JSON"""


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


class Drift(StrEnum):
    """How a turn that came back differs from the one that was sampled."""

    SPACE = "white space"
    UNICODE = "Unicode form"
    KEY_ORDER = "order of JSON keys"
    THOUGHT = "thought left out or changed"
    MESSAGES = "other messages, the same tokens"


def normal_text(text: str) -> str:
    """Return one and the same text for all that differ in white space and in Unicode's canonical
    forms only."""
    return " ".join(normal_form("NFC", text).split())


def meaning_of(message: Message, normal: Callable[[str], str] = normal_text) -> Meaning:
    """Return what is equal for messages of the same meaning. `normal`: `normal_text`, or a
    memory."""
    calls = tuple((call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return message.role, normal(message.content), calls


def drift_of(sampled: Message, sent: Message) -> frozenset[Drift]:
    """Return how `sent` differs from a turn of the same meaning."""
    found: set[Drift] = set()
    if sampled.content != sent.content:
        of_one_form = normal_form("NFC", sampled.content)
        if of_one_form != normal_form("NFC", sent.content):
            found.add(Drift.SPACE)
        if "".join(sampled.content.split()) != "".join(sent.content.split()):
            found.add(Drift.UNICODE)
    if (sampled.reasoning or "").strip() != (sent.reasoning or "").strip():
        found.add(Drift.THOUGHT)
    pairs = zip(sampled.tool_calls, sent.tool_calls, strict=True)
    if any(json_bytes(a.arguments) != json_bytes(b.arguments) for a, b in pairs):
        found.add(Drift.KEY_ORDER)
    return frozenset(found)


def _normal_number(value: float) -> Json:
    """Return a whole one as such, whatever the text was; a large one as the float that some make of
    it.
    """
    if abs(value) < _EXACT:
        return int(value) if value == int(value) else value
    try:
        return float(value)
    except OverflowError:
        return str(value)


def _canonical(arguments: dict[str, Json]) -> bytes:
    return json_bytes(_normal(arguments), sort_keys=True)


def _normal(value: Json) -> Json:
    """JSON with one form for each text and number: white space in arguments has a meaning."""
    if isinstance(value, str):
        return normal_form("NFC", value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _normal_number(value)
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, dict):
        return {normal_form("NFC", key): _normal(item) for key, item in value.items()}
    return value
