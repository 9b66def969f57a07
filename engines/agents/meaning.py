"""What a message means: messages that differ in their form only mean the same.

A harness keeps the conversation and sends it back with each request, seldom as it got it: another
white space, another order of JSON keys, another Unicode form, without thoughts. What it means by a
turn is then still the turn that was sampled, and that one's tokens are used.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from engines.types import Json, Message
from infra.json_text import json_bytes
from infra.unicode_form import normal_form

_EXACT = 2**53
"""whole numbers up to this are told apart by everybody who reads JSON"""
Meaning: TypeAlias = tuple[str, str, tuple[tuple[str, bytes], ...]]
"""role, normal text, and the calls: name and arguments as canonical JSON"""


class Drift(StrEnum):
    """How a turn that came back differs from the one that was sampled."""

    SPACE = "white space"
    UNICODE = "Unicode form"
    KEY_ORDER = "order of JSON keys"
    THOUGHT = "thought left out or changed"
    MESSAGES = "other messages, the same tokens"


def normal_text(text: str) -> str:
    """Of all texts that differ in white space and in Unicode's canonical forms, the same one."""
    return " ".join(normal_form("NFC", text).split())


def meaning_of(message: Message, normal: Callable[[str], str] = normal_text) -> Meaning:
    """What is equal for messages of the same meaning. `normal`: `normal_text`, or a memory."""
    calls = tuple((call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return message.role, normal(message.content), calls


def drift_of(sampled: Message, sent: Message) -> frozenset[Drift]:
    """How `sent` differs from a turn of the same meaning."""
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
    """A whole one as such, whatever the text was; a large one as the float that some make of it."""
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
