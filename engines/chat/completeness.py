"""Whether a template writes all that a conversation says.

It is asked with words that no text has, once for each shape: a conversation of the same roles, with
texts, thoughts, calls and tools where the given one has them. A word of the given one may stand in
the rendering for another reason: the tool `search` in "I will search for it".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from engines.chat.pieces import Pieces
from engines.chat.training_text import cut
from engines.types import Message, Tool, ToolCall
from infra.errors import InputError

_SHAPES = 1024
"""that are kept"""
_CallShape: TypeAlias = int
"""how many arguments it has"""


class _Part(NamedTuple):
    """A part of a message: its number, what it is, and its words."""

    message: int
    what: str
    words: tuple[str, ...]


class _Found(NamedTuple):
    lists_tools: bool
    missing: _Part | None
    """the first part that is not written"""


class _Turn(NamedTuple):
    role: str
    has_text: bool
    has_thought: bool
    calls: tuple[_CallShape, ...]


class Completeness:
    """Answers of one template, by shape."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._known: dict[tuple[tuple[_Turn, ...], int, bool, bool], _Found] = {}

    def lists_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        """Return whether the tools of such a conversation are written."""
        return self._found(messages, tools, thinking=False, is_open=False).lists_tools

    def check(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        *,
        thinking: bool,
        is_open: bool = False,
    ) -> None:
        """Raises InputError that names what is dropped. `is_open`: the assistant speaks next."""
        missing = self._found(messages, tools, thinking=thinking, is_open=is_open).missing
        if missing is not None:
            who = "turn" if messages[missing.message].role == "assistant" else "message"
            raise InputError(
                f"{self._pieces.template.name}: messages[{missing.message}]: the chat template"
                f" drops the {who}'s {missing.what}"
            )

    def _found(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, thinking: bool, is_open: bool
    ) -> _Found:
        shape = tuple(map(_shape, messages))
        key = (shape, len(tools), thinking, is_open)
        if key not in self._known:
            if len(self._known) >= _SHAPES:
                self._known.clear()
            self._known[key] = self._asked(*key)
        return self._known[key]

    def _asked(
        self, shape: tuple[_Turn, ...], num_tools: int, thinking: bool, is_open: bool
    ) -> _Found:
        """Where the template refuses the words, nothing is missing: rendering the row itself says
        why."""
        tools = [Tool(f"zq{n}tool", "", {}) for n in range(num_tools)]
        messages = [_stand_in(turn, n) for n, turn in enumerate(shape)]
        try:
            text = self._pieces.template.render(
                messages, tools=tools, thinking=thinking, open_turn=is_open
            ).casefold()
        except InputError:
            return _Found(True, None)
        lists_tools = all(tool.name in text for tool in tools)
        for part in _parts(messages):
            if not all(word in text for word in part.words):
                return _Found(lists_tools, part)
        return _Found(lists_tools, None if is_open else self._thought(shape, thinking))

    def _thought(self, shape: tuple[_Turn, ...], thinking: bool) -> _Part | None:
        """The last thought, if it is dropped even from a turn that is the last one."""
        for number in reversed(range(len(shape))):
            if shape[number].has_thought:
                try:
                    asked = [Message("user", "u"), _stand_in(shape[number], number)]
                    cut(self._pieces, asked, (), thinking)
                except InputError:
                    return _Part(number, "thought", ())
                return None
        return None


def _shape(message: Message) -> _Turn:
    calls = tuple(len(call.arguments) for call in message.tool_calls)
    return _Turn(message.role, bool(message.content.strip()), bool(message.reasoning), calls)


def _stand_in(turn: _Turn, number: int) -> Message:
    calls = tuple(
        ToolCall(
            f"zq{number}x{n}call",
            {f"zq{number}x{n}y{k}key": f"zq{number}x{n}y{k}value" for k in range(arguments)},
        )
        for n, arguments in enumerate(turn.calls)
    )
    return Message(
        turn.role,  # pyrefly: ignore[bad-argument-type]
        f"zq{number}text" if turn.has_text else "",
        f"zq{number}thought" if turn.has_thought else None,
        calls,
    )


def _parts(messages: Sequence[Message]) -> Iterator[_Part]:
    for number, message in enumerate(messages):
        yield _Part(number, "text", (message.content,))
        names = [call.name for call in message.tool_calls]
        inside = [w for c in message.tool_calls for pair in c.arguments.items() for w in pair]
        yield _Part(number, "tool calls", (*names, *map(str, inside)))
