"""Tokens of a model's own format inside somebody's text.

A tokenizer makes one token of `<|im_end|>` wherever it stands, so a text that holds it would end a
turn or open another one, in training as in prompts. Such texts are refused everywhere: rows,
prompts, tool results, requests of agents. Tags of thoughts and calls are no control tokens: texts
may hold them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tokenizers import AddedToken

from engines.types import Json, Message, Tool
from infra.errors import InputError

_TAG = re.compile(r"think|tool_call>|tool_response>|tools>|arg_key>|arg_value>")


class ControlTokens:
    """The control tokens of one tokenizer and template."""

    def __init__(
        self, template: str, added: Mapping[int, AddedToken], ends: frozenset[int], written: str
    ) -> None:
        """`template`: the name of its file; `written`: a conversation that it wrote, without
        thoughts and tools."""
        self._template = template
        own = {
            token.content
            for number, token in added.items()
            if token.special or number in ends or token.content in written
        }
        own = {text for text in own if text.strip() and not _TAG.search(text)}
        longest_first = sorted(own, key=lambda text: (-len(text), text))
        self._any = re.compile("|".join(map(re.escape, longest_first))) if own else None

    def refuse(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), where: str = "messages"
    ) -> None:
        """Raises InputError that names the message and the token."""
        if self._any is None:
            return
        for number, message in enumerate(messages):
            for text in _texts(message):
                if found := self._any.search(text):
                    raise self._refused(f"{where}[{number}]", found.group())
        for tool in tools:
            for text in _strings([tool.name, tool.description, dict(tool.schema or {})]):
                if found := self._any.search(text):
                    raise self._refused(f"tool {tool.name}", found.group())

    def _refused(self, where: str, token: str) -> InputError:
        return InputError(
            f"{where}: its text holds {token}, a control token of the model's own format"
            f" ({self._template}): the model would read it as a part of the format, not of the"
            f" text. Take it out, or write it in another way, e.g. {token[0]} {token[1:]}"
        )


def _texts(message: Message) -> Iterator[str]:
    yield message.content
    if message.reasoning:
        yield message.reasoning
    for call in message.tool_calls:
        yield call.name
        yield from _strings(call.arguments)


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from _strings(item)
