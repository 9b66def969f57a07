"""What the model wrote in one turn, parsed strictly: a turn is well formed, or it says why not.

Tool calls as models write them, parsed strictly: a call is right, or it says what is wrong.

    glm     <tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>
    hermes  <tool_call>{"name": "name", "arguments": {"k": "v"}}</tool_call>     (Qwen)

Both: tags balance, the tool is known, no key twice, required keys present, every value of its
declared type, every text one that UTF-8 can hold. In the glm form the value of a string parameter
is the raw text, others are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isinf
from typing import Any, Literal, NoReturn, TypeAlias

from engines.types import AssistantTurn, Json, Problem, Tool, ToolCall
from infra.json_text import ParameterKind, kind_of_others

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CallForm: TypeAlias = Literal["glm", "hermes"]

_ARGUMENT = re.compile(
    r"\s*<arg_key>(?P<key>[^<>]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL
)
_MOST_DIGITS = 300
"""of a whole number: more have no place in a float, as which many read it"""
_TAG = re.compile(r"</?(?:tool_call|arg_key|arg_value)>")


class CallError(Exception):
    """A call that breaks the form; the message is the reason."""


def parse_calls(text: str, tools: Sequence[Tool], form: CallForm) -> list[ToolCall]:
    """The calls in `text`, which starts at the first `<tool_call>`. Raises CallError."""
    known = {tool.name: tool for tool in tools}
    parse = _FORMS[form]
    calls: list[ToolCall] = []
    rest = text
    while rest.strip():
        body, rest = _next_body(rest)
        calls.append(parse(body, known))
    return calls


def _next_body(text: str) -> tuple[str, str]:
    text = text.lstrip()
    if not text.startswith(OPEN):
        raise CallError(f"text after a tool call: {_short(text)}")
    body, closed, rest = text[len(OPEN) :].partition(CLOSE)
    if not closed:
        raise CallError(f"{OPEN} is not closed")
    if OPEN in body:
        raise CallError(f"{OPEN} inside a tool call")
    return body, rest


def _parse_glm(body: str, known: Mapping[str, Tool]) -> ToolCall:
    start = body.find("<")
    name, rest = (body, "") if start < 0 else (body[:start], body[start:])
    tool = _tool(name.strip(), known)
    arguments: dict[str, Json] = {}
    while rest.strip():
        match = _ARGUMENT.match(rest)
        if match is None or _TAG.search(match["value"]):
            raise CallError(f"argument tags of {tool.name} do not balance: {_short(rest)}")
        key, rest = match["key"].strip(), rest[match.end() :]
        if key in arguments:
            raise CallError(f"argument {key} of {tool.name} is given twice")
        arguments[key] = _glm_value(tool, key, match["value"])
    _check(tool, arguments)
    return ToolCall(tool.name, arguments)


def _glm_value(tool: Tool, key: str, text: str) -> Json:
    kind = _kind_of(tool, key)
    if kind is None:
        raise CallError(f"{tool.name} has no parameter {_short(key)}")
    if kind == "string":
        return text
    if kind == "any":
        return _json_or_text(text)
    try:
        return _read(text)
    except ValueError as error:
        raise CallError(
            f"argument {key} of {tool.name} is not a JSON {kind}: {_short(text)}"
        ) from error


def _json_or_text(text: str) -> Json:
    try:
        return _read(text)
    except (ValueError, CallError):
        return text


def _parse_hermes(body: str, known: Mapping[str, Tool]) -> ToolCall:
    try:
        raw: Any = _read(body, _unique)
    except ValueError as error:
        raise CallError(f"a tool call is not JSON: {_short(body)}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise CallError(f"a tool call lacks its name: {_short(body)}")
    tool = _tool(raw["name"], known)
    arguments = raw.get("arguments", {})
    if not isinstance(arguments, dict):
        raise CallError(f"arguments of {tool.name} are not a JSON object")
    _check(tool, arguments)
    return ToolCall(tool.name, arguments)


_FORMS: dict[CallForm, Callable[[str, Mapping[str, Tool]], ToolCall]] = {
    "glm": _parse_glm,
    "hermes": _parse_hermes,
}


def _read(text: str, pairs: Callable[[list[tuple[str, Json]]], Json] | None = None) -> Json:
    """Raises ValueError for what is not JSON, is nested too deeply, or has numbers beyond those of
    a float or half of a surrogate pair, and CallError."""
    try:
        value = json.loads(
            text, object_pairs_hook=pairs, parse_constant=_no_constant, parse_int=_whole,
            parse_float=_finite,
        )  # fmt: skip
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def _tool(name: str, known: Mapping[str, Tool]) -> Tool:
    if name not in known:
        raise CallError(f"unknown tool {_short(name)}; known: {', '.join(known) or 'none'}")
    return known[name]


def _check(tool: Tool, arguments: Mapping[str, Json]) -> None:
    for key, value in arguments.items():
        kind = _kind_of(tool, key)
        if kind is None:
            raise CallError(f"{tool.name} has no parameter {_short(key)}")
        if not _is_a(kind, value):
            raise CallError(f"argument {key} of {tool.name} is not a JSON {kind}")
    missing = [key for key in tool.required if key not in arguments]
    if missing:
        raise CallError(f"{tool.name} lacks the argument {', '.join(missing)}")


def _kind_of(tool: Tool, key: str) -> ParameterKind | None:
    """The JSON type of an argument; None for one that the tool does not take."""
    return tool.parameters.get(key) or kind_of_others(tool.schema)


def _is_a(kind: str, value: Json) -> bool:
    if kind == "any":
        return True
    if isinstance(value, bool):  # bool is an int in Python, not in JSON
        return kind == "boolean"
    types: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "number": (int, float),
        "integer": (int,),
        "array": (list,),
        "object": (dict,),
        "boolean": (),
    }
    return isinstance(value, types[kind])


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise CallError(f"argument {_short(key)} is given twice")
        found[key] = value
    return found


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    if isinf(value := float(digits)):
        raise ValueError(f"{digits} is beyond the numbers of a float")
    return value


def _no_constant(name: str) -> NoReturn:
    raise CallError(f"{name} is not a JSON value")


def _short(text: str, most: int = 40) -> str:
    return repr(text if len(text) <= most else text[:most] + "...")


THINK, END_THINK = "<think>", "</think>"


class Thought(StrEnum):
    """What the assistant's header leaves to the model."""

    WRITTEN = "written"
    """the model writes both tags"""
    OPEN = "open"
    """the header has `<think>`: the model writes the thought and `</think>`"""
    CLOSED = "closed"
    """the header has an empty thought: the model writes none"""
    OPTIONAL = "optional"
    """the template has no switch: a thought may come or not"""


@dataclass(frozen=True, slots=True)
class ThoughtForm:
    """How a template sets a thought, to take away exactly what it adds."""

    after_open: str = ""
    before_close: str = ""
    after_close: str = ""

    def split(self, text: str, thought: Thought) -> tuple[str | None, str]:
        """Reasoning (None if the turn has none) and the rest. Raises CallError if tags are off."""
        if thought is Thought.OPEN:
            text = THINK + text
        opened, closed = text.count(THINK), text.count(END_THINK)
        if opened == closed == 0 and thought in (Thought.CLOSED, Thought.OPTIONAL):
            return None, text
        if thought is Thought.CLOSED:
            raise CallError("a think tag in a turn without thinking")
        if not text.startswith(THINK):
            raise CallError("the turn does not start with its thought")
        if opened != 1 or closed != 1:
            raise CallError(f"{opened} {THINK} and {closed} {END_THINK}: one pair is expected")
        reasoning, rest = text.removeprefix(THINK).split(END_THINK)
        reasoning = reasoning.removeprefix(self.after_open).removesuffix(self.before_close)
        return reasoning, rest.removeprefix(self.after_close)


@dataclass(frozen=True, slots=True)
class TurnParser:
    """Parses turns of one template."""

    form: ThoughtForm
    calls: CallForm | None

    def parse(self, problem: Problem, text: str, thought: Thought) -> AssistantTurn:
        """`text` is the turn without its stop token."""
        try:
            reasoning, visible = self.form.split(text, thought)
            content, calls = self._calls(problem, visible)
        except CallError as error:
            return AssistantTurn(text, text, None, (), error=str(error))
        return AssistantTurn(text, content, reasoning, calls)

    def _calls(self, problem: Problem, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        if self.calls is None:
            return text, ()
        start = text.find(OPEN)
        content = text if start < 0 else text[:start]
        stray = next((tag for tag in _STRAY if tag in content), None)
        if stray is not None:
            raise CallError(f"{stray} outside a tool call")
        if start < 0:
            return content, ()
        return content.rstrip("\n"), tuple(parse_calls(text[start:], problem.tools, self.calls))


_STRAY = ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
