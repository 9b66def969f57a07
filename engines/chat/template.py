"""A chat template, rendered as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engines.types import Message, Tool
from infra.errors import InputError


class ChatTemplate:
    """Jinja text of a model folder. `name` is the file it comes from; messages begin with it.

    `strftime_now` is left out on purpose: a prompt that changes with the date would make a resumed
    run differ. Templates that use it fall back to a fixed date.
    """

    def __init__(self, text: str, name: str, variables: Mapping[str, Any]) -> None:
        self.name = name
        self._variables = dict(variables)
        try:
            self._template = _environment().from_string(text)
        except TemplateError as error:
            raise InputError(
                f"{name}: the chat template does not compile: {_reason(error)}"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        thinking: bool = False,
        open_turn: bool = False,
    ) -> str:
        """The conversation as text; `open_turn` ends it with the assistant's header."""
        try:
            return self._template.render(
                **self._variables,
                messages=[_message(m) for m in messages],
                tools=[_tool(t) for t in tools] or None,
                enable_thinking=thinking,
                add_generation_prompt=open_turn,
            )
        except Exception as error:  # it is a program of the folder's
            roles = ", ".join(m.role for m in messages)
            raise InputError(
                f"{self.name}: the chat template cannot render the turns ({roles}): {error}"
            ) from error


def _reason(error: TemplateError) -> str:
    line = getattr(error, "lineno", None)
    return f"line {line}: {error.message}" if line else str(error)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for other libraries; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox; a message's own field, of which most of a template's accesses are, is found
    without its checks, as it would be with them."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _METHODS:
            return obj[attribute]
        return super().getattr(obj, attribute)


_METHODS = frozenset(dir(dict))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Any] = {"raise_exception": _refuse}
    environment.globals.update(functions)
    return environment


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    # Jinja's own filter escapes HTML, which models have never seen.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _message(message: Message) -> dict[str, Any]:
    raw: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        raw["reasoning_content"] = message.reasoning
    if message.tool_calls:
        raw["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    return raw


def _tool(tool: Tool) -> dict[str, Any]:
    if tool.schema is not None:
        return {"type": "function", "function": tool.schema}
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": {name: {"type": kind} for name, kind in tool.parameters.items()},
                "required": list(tool.required),
            },
        },
    }
