"""The prompt of a judge: a text with places for what it judges.

{question}        the problem's messages; alone where there is one
{answer}          the last assistant turn
{conversation}    every turn after the problem, with its role
{reference}       the problem's reference; {reference.NAME} a field of it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from string import Formatter

from engines.types import Json, Message, Transcript
from infra.numbers import value_text

PLACES = ("question", "answer", "conversation", "reference")


def prompt_fault(template: str) -> str:
    """Why a template cannot be filled in, in words; empty if it can."""
    try:
        names = _names(template)
    except ValueError as error:
        return f"{error}; write {{{{ and }}}} for braces that are no place"
    for name in names:
        first, dot, _ = name.partition(".")
        if first not in PLACES or (dot and first != "reference"):
            allowed = ", ".join(f"{{{place}}}" for place in PLACES)
            return f"there is no {{{name}}}; allowed: {allowed}, {{reference.NAME}}"
    if not {"answer", "conversation"} & set(names):
        return "it shows nothing of what is judged; write {answer} or {conversation} into it"
    return ""


def reference_places(template: str) -> tuple[str, ...]:
    """The fields of a reference that a template shows; `""` for the whole of it."""
    places = [name.partition(".") for name in _names(template)]
    return tuple(dict.fromkeys(key for first, _, key in places if first == "reference"))


def filled(template: str, transcript: Transcript) -> str:
    """Raises ValueError for a field that the problem's reference does not have."""
    parts: list[str] = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(_value(name, transcript))
    return "".join(parts)


def _names(template: str) -> list[str]:
    found: list[str] = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if form or conversion:
            raise ValueError(f"{{{name}}} takes no format")
        found.append(name)
    return found


def _value(name: str, transcript: Transcript) -> str:
    problem = transcript.problem
    match name.partition("."):
        case "question", _, _:
            return _shown(problem.messages)
        case "answer", _, _:
            return transcript.answer
        case "conversation", _, _:
            return _shown(transcript.messages, with_roles=True)
        case _, "", _:
            return _text(problem.reference)
        case _, _, key:
            held = problem.reference
            if not isinstance(held, dict) or key not in held:
                raise ValueError(f"problem {problem.id}: its reference has no {key!r}")
            return _text(held[key])


def _shown(messages: Sequence[Message], *, with_roles: bool = False) -> str:
    if len(messages) == 1 and not with_roles:
        return messages[0].content
    return "\n".join(f"{m.role}: {_said(m)}" for m in messages)


def _said(message: Message) -> str:
    calls = [f"{c.name}({json.dumps(c.arguments, sort_keys=True)})" for c in message.tool_calls]
    return " ".join(filter(None, [message.content, *calls]))


def _text(value: Json) -> str:
    is_plain = isinstance(value, str | int | float)
    return value_text(value) if is_plain else json.dumps(value, ensure_ascii=False)
