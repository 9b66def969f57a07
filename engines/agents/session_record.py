"""What a session's rollout keeps beside its tokens: what was sent, what drifted, what was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from engines.agents.trajectory import Kind, Turn
from engines.agents.wire.wire_format import Request
from engines.rollout.drivers.session import TokenSession
from engines.types import Json, Message
from infra.json_text import json_bytes

SESSION = "session"
"""where a sample's metadata have its turns"""
_TEXT = 2000
"""characters of a message that are kept"""
_ALL_TEXT = 64_000
"""of all of them"""
_VALUES = 8
"""of one sampling parameter"""


class SessionRecord:
    """The record of one session: plain numbers and texts; the same session gives the same
    record."""

    def __init__(self, sampling: Mapping[str, Json]) -> None:
        """`sampling`: how every turn is sampled, whatever a request says."""
        self._sampling = sampling
        self._turns: dict[int, dict[str, Json]] = {}
        self._asked: dict[str, list[Json]] = {}
        self._left = _ALL_TEXT
        self._not_delivered = 0
        self._tokens_not_delivered = 0
        self._aborted = 0

    def note(self, turn: Turn, kind: Kind, request: Request) -> None:
        """A turn that was sampled."""
        self._turns[turn.number] = {
            "turn": turn.number,
            "after": turn.parent.number if turn.parent is not None else 0,
            "kind": str(kind),
            "sent": [[message.role, self._text(message)] for message in turn.context],
        }
        for name, asked in request.asked.items():
            value, kept = _bounded(asked), self._asked.setdefault(name, [])
            if not self._is_ours(name, value) and value not in kept and len(kept) < _VALUES:
                kept.append(value)

    def aborted(self) -> None:
        """A turn whose client left while it was sampled."""
        self._aborted += 1

    def not_delivered(self, turn: Turn) -> None:
        """A turn that was sampled and did not reach its client."""
        self._turns.pop(turn.number)
        self._not_delivered += 1
        self._tokens_not_delivered += turn.end - turn.begin

    def notes(self, turns: Sequence[Turn], lines: Sequence[TokenSession]) -> list[dict[str, Json]]:
        """Return, for each line, which is a sample, its turns; with the first, what the session
        was."""
        notes: list[dict[str, Json]] = []
        for line in lines:
            own: list[Json] = [self._turn(turn) for turn in turns if turn.line is line]
            notes.append({"turns": own})
        notes[0]["whole"] = self._whole(turns)
        return [{SESSION: note} for note in notes]

    def _whole(self, turns: Sequence[Turn]) -> dict[str, Json]:
        drift = Counter(str(reason) for turn in turns for reason in turn.drift)
        kinds = Counter(cast("str", self._turns[turn.number]["kind"]) for turn in turns)
        return {
            "kinds": dict(kinds),
            "drift": dict(drift),
            "asked": {name: values for name, values in self._asked.items() if values},
            "aborted": self._aborted,
            "not_delivered": self._not_delivered,
            "tokens_not_delivered": self._tokens_not_delivered,
        }

    def _turn(self, turn: Turn) -> dict[str, Json]:
        noted = self._turns[turn.number] | {"begin": turn.begin, "end": turn.end}
        if turn.drift:
            noted["drift"] = [str(reason) for reason in sorted(turn.drift)]
        if turn.came_back is not None:
            noted["said"] = self._text(turn.said)
            noted["came_back"] = self._text(turn.came_back)
        return noted

    def _text(self, message: Message) -> str:
        """Return as much of it as there is room for."""
        calls = [_call(call.name, call.arguments) for call in message.tool_calls]
        thought = [f"<think>{message.reasoning}</think>"] if message.reasoning else []
        text = "\n".join([*thought, *filter(None, [message.content]), *calls])
        most = min(_TEXT, self._left)
        self._left -= min(len(text), most)
        return text if len(text) <= most else text[:most] + "..."

    def _is_ours(self, name: str, value: Json) -> bool:
        """Return whether it asks for what the stage does anyway."""
        return name in self._sampling and value == self._sampling[name]


def _bounded(value: Json) -> Json:
    """The value, or the beginning of its text: a client may send megabytes."""
    text = json_bytes(value).decode()
    return value if len(text) <= _TEXT else text[:_TEXT] + "..."


def _call(name: str, arguments: Mapping[str, Json]) -> str:
    return f"{name}({json_bytes(arguments).decode()})"
