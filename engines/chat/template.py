"""A chat template, rendered as transformers renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engines.chat import template_bounds, template_sizes
from engines.types import Message, Tool, ToolCall
from infra.errors import InputError

SWITCHES = ("enable_thinking", "thinking")
"""variables with which templates turn thoughts on and off (DeepSeek-V3.1 and Granite: the second)
"""
_AT_ENDS = ("startswith", "endswith")
_LONGEST = 256 << 10
"""characters of a template; those of known models have up to 50,000"""
_LONGEST_REASON = 1000
_WIDEST_INDENT = 16
DATE = date(2024, 7, 26)
"""the day that every template is told; Llama 3.2's own, where it is told none"""
START, END = "\ue000", "\ue001"
"""around what the assistant writes; characters that no text should have"""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")


class ChatTemplate:
    """Jinja text of a model folder. `name` is the file it comes from; messages begin with it.

    `strftime_now` always gives the same day, DATE: a prompt that changes with the date would make a
    resumed run differ, and a model that was trained yesterday would be asked in other tokens today.
    """

    def __init__(self, text: str, name: str, variables: Mapping[str, Any]) -> None:
        self.name, self.text = name, text
        self._variables = dict(variables)
        if len(text) > _LONGEST:
            raise InputError(f"{name}: the chat template has more than {_LONGEST} characters")
        self.marks_generation = _GENERATION.search(text) is not None
        """whether it says itself what the assistant writes, with `{% generation %}`"""
        try:
            self._template = self._marked = _compiled(text, _Generation)
            if self.marks_generation:
                self._marked = _compiled(text, _MarkedGeneration)
        except RecursionError as error:
            raise InputError(f"{name}: the chat template is nested too deeply") from error
        except Exception as error:  # Python's own compiler and numbers have limits too
            raise InputError(
                f"{name}: the chat template does not compile: {_reason(error)}"
            ) from error
        self.is_dated = "strftime_now" in text
        """whether it writes a date into conversations"""
        self._callers = _Callers()
        with template_bounds.together():
            self._callers = self._form_of_callers()

    @property
    def start_text(self) -> str:
        """Text of the folder's `bos_token`; empty where it names none."""
        return str(self._variables.get("bos_token") or "")

    @property
    def needs_ids(self) -> bool:
        """Return whether it refuses calls without ids."""
        return self._callers.has_ids

    @property
    def literals(self) -> Literals:
        """Texts that stand in its expressions."""
        tree = _environment(_Generation).parse(self.text)
        asked = [
            call for call in tree.find_all(nodes.Call)
            if isinstance(call.node, nodes.Getattr) and call.node.attr in _AT_ENDS
        ]  # fmt: skip
        at_ends = [text for call in asked for text in _texts_in(call)]
        return Literals(tuple(_texts_in(tree)), tuple(at_ends))

    @property
    def end_text(self) -> str:
        """Text of the folder's `eos_token`; empty where it names none."""
        return str(self._variables.get("eos_token") or "")

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        thinking: bool | None = False,
        open_turn: bool = False,
        marked: bool = False,
        switches: Sequence[str] = SWITCHES,
    ) -> str:
        """The conversation as text; `open_turn` ends it with the assistant's header, `marked` puts
        START and END around what the template says the assistant writes. `thinking` is given as
        each of `switches`; None gives none of them."""
        template = self._marked if marked else self._template
        try:
            with template_bounds.rendering():
                pieces = template.generate(
                    **self._variables,
                    messages=_messages(messages, self._callers),
                    tools=[tool_row(t) for t in tools] or None,
                    documents=None,
                    add_generation_prompt=open_turn,
                    **({} if thinking is None else dict.fromkeys(switches, thinking)),
                )
                return template_bounds.joined(pieces)
        except Exception as error:  # it is a program of the folder's
            turns = f"the turns ({', '.join(m.role for m in messages)})"
            raise InputError(
                f"{self.name}: the chat template cannot render {turns}: {_reason(error)}"
            ) from error

    def _form_of_callers(self) -> _Callers:
        """The first form of a message with a call in which the template writes the whole call."""
        call = Message("assistant", "", tool_calls=(ToolCall("zqtool", {"zqkey": "zqvalue"}),))
        for self._callers in _CALLER_FORMS:
            try:
                text = self.render([Message("user", "u"), call])
            except InputError:
                continue
            if "zqtool" in text and "zqvalue" in text and '\\"' not in text:
                return self._callers
        return _Callers()


class Literals(NamedTuple):
    """Texts in a template's expressions."""

    all: tuple[str, ...]
    at_ends: tuple[str, ...]
    """with which it asks whether a text begins or ends"""


def _texts_in(tree: nodes.Node) -> list[str]:
    found = [constant.value for constant in tree.find_all(nodes.Const)]
    return [value for value in found if isinstance(value, str)]


def _reason(error: Exception) -> str:
    told = str(error) or type(error).__name__
    if isinstance(error, TemplateSyntaxError):
        told = f"line {error.lineno}: {error.message}"
    return told if len(told) <= _LONGEST_REASON else told[:_LONGEST_REASON] + " ..."


@dataclass(frozen=True, slots=True)
class _Callers:
    """How a message with tool calls and no text is given to a template."""

    content: str | None = ""
    arguments_as_text: bool = False
    has_ids: bool = False


_CALLER_FORMS = (
    *(_Callers(), _Callers("", True), _Callers(None), _Callers(None, True)),
    _Callers("", has_ids=True),
)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _MarkedGeneration(_Generation):
    """A generation block with marks around it."""

    def parse(self, parser: Parser) -> list[nodes.Node]:
        return [_written(START), *super().parse(parser), _written(END)]


def _written(text: str) -> nodes.Node:
    return nodes.Output([nodes.TemplateData(text)])


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox; a message's own field, of which most of a template's accesses are, is found
    without its checks, as it would be with them."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _METHODS:
            return obj[attribute]
        return super().getattr(obj, attribute)

    concat = staticmethod(template_bounds.joined)  # of macros and blocks too  # pyrefly: ignore[bad-override]
    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        template_sizes.operands(operator, left, right)
        return template_bounds.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        quickly = template_bounds.shrunk(obj, args, kwargs)
        if quickly is not NotImplemented:
            return quickly
        args = template_bounds.before_call(obj, args, kwargs)
        return template_bounds.made(super().call(context, obj, *args, **kwargs))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        template_bounds.bound(source)
        return super()._generate(source, *args, **kwargs)


_METHODS = frozenset(dir(dict))


@lru_cache(maxsize=16)  # several folders have the same one, and are read again and again
def _compiled(text: str, generation: type[Extension]) -> Template:
    return _environment(generation).from_string(text)


def _environment(generation: type[Extension]) -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[generation, loopcontrols]
    )
    filters: dict[str, Any] = {"tojson": _tojson, "sum": template_bounds.summed}
    environment.filters.update(filters)
    for name in template_bounds.LONG_TESTS:
        environment.tests[name] = template_bounds.counted_test(environment.tests[name])
    for name in template_bounds.LEFT_OUT:
        del environment.filters[name]
    for name in environment.filters.keys() - template_bounds.HARMLESS_FILTERS:
        made_by = environment.filters[name]
        environment.filters[name] = template_bounds.bounded_filter(name, made_by)
    del environment.globals["lipsum"]  # random text of any length
    bounds: dict[str, Any] = {
        "trim": template_bounds.trimmed,
        "join": template_bounds.joined_filter,
        template_bounds.TURN: template_bounds.turn,
        template_bounds.MADE: template_bounds.made,
    }
    environment.filters.update(bounds)
    functions: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": DATE.strftime}
    functions["namespace"] = template_bounds.ShortNamespace
    environment.globals.update(functions)
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models have never seen.
    if isinstance(indent, str) or (indent or 0) > _WIDEST_INDENT:
        raise TemplateError(f"it indents JSON by other than the number 0 to {_WIDEST_INDENT}")
    if max(map(len, separators or ()), default=0) > _WIDEST_INDENT:
        raise TemplateError(f"its JSON has separators of more than {_WIDEST_INDENT} characters")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _messages(messages: Sequence[Message], callers: _Callers) -> list[dict[str, Any]]:
    rows = [_message(message, callers) for message in messages]
    if not callers.has_ids:
        return rows
    made, results = count(), iter(())
    for message, row in zip(messages, rows, strict=True):
        if message.tool_calls:  # nine digits, as Mistral's templates want them
            ids = [call.id or f"{next(made):09}" for call in message.tool_calls]
            for call, its_id in zip(row["tool_calls"], ids, strict=True):
                call["id"] = its_id
            results = iter(ids)
        elif message.role == "tool":  # in the order of the calls
            row["tool_call_id"] = next(results, "")
    return rows


def _message(message: Message, callers: _Callers) -> dict[str, Any]:
    raw: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        raw["reasoning_content"] = raw["thinking"] = message.reasoning
    if message.tool_calls:
        raw["content"] = message.content or callers.content
        raw["tool_calls"] = [
            {
                "type": "function",
                "function": {
                    "name": c.name,
                    "arguments": _tojson(c.arguments) if callers.arguments_as_text else c.arguments,
                },
            }
            for c in message.tool_calls
        ]
    return raw


def message_row(message: Message) -> dict[str, Any]:
    """Return a message as OpenAI's API and rows of data have it."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": _tojson(c.arguments)}}
            for c in message.tool_calls
        ]
    return row


def tool_row(tool: Tool) -> dict[str, Any]:
    """Return a tool as OpenAI's API and rows of data have it."""
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
