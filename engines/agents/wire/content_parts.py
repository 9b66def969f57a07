"""What the three wire formats share: lenient models, texts, tools, calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from engines.agents.wire.wire_format import MOST_PARTS, Refusal
from engines.types import Json, Message, Tool, ToolCall
from infra.json_text import json_bytes, strict_json

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text"})
_MOST_BRACKETS = 200_000
"""objects and lists of a body: reading more would take the time of others"""
_PIECE = 256
"""characters of one event of a stream"""


class WireModel(BaseModel):
    """A part of a request. Clients send many fields that change nothing here: they are left out."""

    model_config = ConfigDict(extra="ignore")


class Body(WireModel):
    """A whole request. Of what is not read, some is recorded: see `asked_of`."""

    model_config = ConfigDict(extra="allow")


class Part(WireModel):
    """A piece of a message's content."""

    type: str = "text"
    text: str | None = None


Model = TypeVar("Model", bound=WireModel)


def read(model: type[Model], body: bytes, refused: Mapping[str, str]) -> Model:
    """Raises Refusal that names the first field which is wrong. `refused`: fields without which a
    request would mean something else, and what to do instead."""
    if body.count(b"{") + body.count(b"[") > _MOST_BRACKETS:
        said = f"the body has more than {_MOST_BRACKETS} opening brackets"
        raise Refusal(413, said, "request_too_large")
    try:
        loaded = orjson.loads(body)
        orjson.dumps(loaded)
        if _parts(loaded) > MOST_PARTS:
            said = f"a conversation may have {MOST_PARTS} messages, parts of them and tools"
            raise Refusal(413, said, "request_too_large")
        for name in refused.keys() & set(_names(loaded)):
            if loaded[name]:
                raise Refusal(400, f"{name}: is not supported; {refused[name]}")
        return model.model_validate(loaded)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is not valid JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "the body"
        raise Refusal(400, f"{where}: {first['msg']}") from None
    except (RecursionError, TypeError):  # orjson writes fewer levels than it reads
        raise Refusal(400, "the body is nested too deep") from None


def _parts(body: object) -> int:
    """Items of the lists of a body, and of lists in these items."""
    found = 0
    for value in _values(body):
        if isinstance(value, list):
            items = cast("list[object]", value)
            inner = (len(each) for item in items for each in _values(item) if _is_list(each))
            found += len(items) + sum(inner)
    return found


def _values(item: object) -> Iterable[object]:
    return cast("dict[str, object]", item).values() if isinstance(item, dict) else ()


def _names(item: object) -> Iterable[str]:
    return cast("dict[str, object]", item) if isinstance(item, dict) else ()


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def text_of(content: str | Sequence[Part] | None, where: str) -> str:
    """The text of a message's content. Raises Refusal for anything else, as an image."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in _TEXTS:
            raise Refusal(
                400,
                f"{where}: a part of type {part.type!r} is not supported: the policy reads text"
                " only. Send the part as text, or leave it out",
                "unsupported_content",
            )
    return "".join(part.text or "" for part in content)


Said: TypeAlias = tuple[Message, Sequence[str | None]]
"""a message with the ids of its calls, or of the call that it answers"""


def in_order(said: Iterable[Said]) -> tuple[Message, ...]:
    """The messages, with tools' answers that stand side by side in the order of the calls: a client
    may send them in any, and templates write no ids by which a policy could tell."""
    places: dict[str | None, int] = {}
    found: list[Message] = []
    for is_answer, group in groupby(said, lambda each: each[0].role == "tool"):
        run = list(group)
        if is_answer:
            run.sort(key=lambda each: places.get(each[1][0], len(places)))
        else:
            places = {name: at for at, name in enumerate(n for _, names in run for n in names)}
        found += [message for message, _ in run]
    return tuple(found)


def tool_of(name: str, description: str | None, schema: Mapping[str, Any] | None) -> Tool:
    """Return a function with its parameters as a JSON schema."""
    parameters = dict(schema) if schema else {"type": "object", "properties": {}}
    said = description or ""
    return Tool.of_function({"name": name, "description": said, "parameters": parameters})


def call_of(name: str, arguments: str, where: str) -> ToolCall:
    """Return a call that comes back in a history. Raises Refusal."""
    try:
        read_arguments: Any = strict_json(arguments) if arguments.strip() else {}
    except ValueError as error:
        raise Refusal(400, f"{where}: arguments of {name} are not valid JSON: {error}") from None
    if not isinstance(read_arguments, dict):
        raise Refusal(400, f"{where}: arguments of {name} are not a JSON object")
    return ToolCall(name, read_arguments)


def arguments_text(call: ToolCall) -> str:
    return json_bytes(call.arguments).decode()


def asked_of(body: Body, names: Sequence[str]) -> dict[str, Json]:
    """Return the fields that a request sets."""
    found = {name: getattr(body, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def pieces(text: str) -> Iterator[str]:
    """Cut a text for the events of a stream; none of an empty text."""
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json_bytes(data) + b"\n\n"
