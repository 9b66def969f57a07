"""Conversations of plain text, rendered by filling a rendering that was made once.

Templates treat some texts in a way of their own: they trim white space, look for tags, for switches
such as `/no_think`, or for anything else that stands in the template as a text. A text without any
of these is written as it is, so that conversations of the same roles and the same system message
differ in their texts alone. That is tried for each such shape, with texts of several kinds; a
template that fails once is rendered whole each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from engines.chat.template import Literals
from engines.chat.training_text import TrainingText
from engines.types import Message

_SHAPES = 1024
"""that are kept"""
_SPECIAL = ("<", "\ue000", "\ue001", "/no", "/think")
_SLOT = re.compile(r"Zq(\d+)qZ")
_PROBES = (
    "7",
    "Two words, and\nanother line:\n\n- \u00fcber \u4e2d\u6587 \U0001f600",
    "{{ x }} {% y %} \"quoted\" 'single' \\n $a^2$ [0] #",
    "a long text " * 2000 + "end",
)
_SPACES = (
    *("\t", "\r", "\r\n", "\n\n\n", "  ", " \n", "\n ", "\v", "\f", "\x1c", "\x85"),
    *("\xa0", "\u2028", "\u200b", "\ufeff", "&"),
)
"""that a template may change without naming them, e.g. where it takes a text apart into lines"""
_Shape: TypeAlias = tuple[tuple[str, str], ...]
_Filling: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]
"""literals, and the messages whose texts stand between them"""
Cut: TypeAlias = Callable[[Sequence[Message]], TrainingText]


class PlainTexts:
    """Renderings by shape."""

    def __init__(self, cut: Cut, literals: Callable[[], Literals]) -> None:
        """`cut` renders a conversation without thoughts and tools; `literals` are those of the
        template."""
        self._cut = cut
        self._literals = literals
        self._known: dict[_Shape, list[_Filling] | None] = {}

    def cut(self, messages: Sequence[Message]) -> TrainingText | None:
        """The conversation as the template renders it; None for one that is not plain."""
        if not all(map(_is_plain, messages)) or self._names_any(messages):
            return None
        shape = tuple((m.role, m.content if m.role == "system" else "") for m in messages)
        if shape not in self._known:
            if len(self._known) >= _SHAPES:
                self._known.clear()
            self._known[shape] = self._tried(messages)
        found = self._known[shape]
        if found is None:
            return None
        texts = [message.content for message in messages]
        prompt, *rest = [_filled(filling, texts) for filling in found]
        return TrainingText(prompt, list(zip(rest[::2], rest[1::2], strict=True)))

    def _names_any(self, messages: Sequence[Message]) -> bool:
        """Whether a text holds what the template writes in another way."""
        inside, at_ends = self._changed
        return any(
            any(part in message.content for part in inside)
            or message.content.startswith(at_ends)
            or message.content.endswith(at_ends)
            for message in messages
        )

    @cached_property
    def _changed(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parts of texts that the template changes, and those at which its texts begin or end."""
        found = self._literals()
        parts = dict.fromkeys((*_SPACES, *(each for each in found.all if each)))
        tried = [each for each in parts if not any(special in each for special in _SPECIAL)]
        kept = self._keeps("".join(f"a{part}b" for part in tried))
        inside = () if kept else tuple(part for part in tried if not self._keeps(f"a{part}b"))
        return inside, tuple(filter(None, found.at_ends))

    def _keeps(self, text: str) -> bool:
        """Whether this text is written as it is."""
        asked = [Message("user", "Zq0qZ"), Message("assistant", "Zq1qZ")] * 2
        try:
            made = [_filling(part) for part in _parts(self._cut(asked))]
            found = _parts(self._cut(_with_texts(asked, lambda _: text)))
        except Exception:  # whatever it is, rendering the row itself will say it
            return False
        return [_filled(each, [text] * len(asked)) for each in made] == found

    def _tried(self, messages: Sequence[Message]) -> list[_Filling] | None:
        """None for a shape that cannot be filled so, or that the template refuses."""
        try:
            made = [
                _filling(part)
                for part in _parts(self._cut(_with_texts(messages, lambda at: f"Zq{at}qZ")))
            ]
            for first in range(len(_PROBES)):
                probe = _with_texts(messages, lambda at, n=first: _PROBES[(at + n) % len(_PROBES)])
                texts = [message.content for message in probe]
                if [_filled(each, texts) for each in made] != _parts(self._cut(probe)):
                    return None
        except Exception:  # whatever it is, rendering the row itself will say it
            return None
        return made


def _is_plain(message: Message) -> bool:
    text = message.content
    if message.role == "tool" or message.tool_calls or message.reasoning is not None or not text:
        return False
    if text[0].isspace() or text[-1].isspace():
        return False
    return not any(special in text for special in _SPECIAL)


def _with_texts(messages: Sequence[Message], text: Callable[[int], str]) -> list[Message]:
    return [
        message if message.role == "system" else replace(message, content=text(at))
        for at, message in enumerate(messages)
    ]


def _parts(text: TrainingText) -> list[str]:
    return [text.prompt, *(part for exchange in text.exchanges for part in exchange)]


def _filling(text: str) -> _Filling:
    pieces = _SLOT.split(text)
    return tuple(pieces[::2]), tuple(map(int, pieces[1::2]))


def _filled(filling: _Filling, texts: Sequence[str]) -> str:
    literals, slots = filling
    made = [literals[0]]
    for slot, literal in zip(slots, literals[1:], strict=True):
        made += (texts[slot], literal)
    return "".join(made)
