"""The tree of a session: which turns were sampled, after which messages.

    root ─ user ─▶ turn 1 ─ tool ─▶ turn 2 ─ tool ─▶ turn 3
                     │                └─ user ─▶ turn 5            a retry, or an edit
                     └─ tool ─▶ turn 4                             a parallel branch
    root ─ summary ─▶ turn 6                                       a compaction, or a sub-agent

Turns that continue each other lie in one token session, a *line*; a branch opens another, with the
tokens before it as its prompt. So every sampled token is in the loss of one sample at most, and
what a branch shares with another is context there. Matching is pure: messages in, a place out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from engines.agents.incremental_prompt import Drift, Meaning, drift_of, meaning_of, normal_text
from engines.rollout.drivers.session import TokenSession
from engines.rollout.drivers.session_host import End
from engines.types import Message, Tokens
from infra.json_text import json_bytes

_MOST_REMEMBERED = 1 << 23
"""characters of texts whose normal form is remembered"""


class Kind(StrEnum):
    """How a turn stands to those before it."""

    FIRST = "first"
    CONTINUED = "continued"
    NEW = "new conversation"
    """of a sub-agent, or after a compaction"""
    RETRY = "retry"
    """the same messages as a turn before"""
    BRANCH = "branch"
    """other messages after the same turn"""
    EDITED = "edited history"
    """with a turn that was never sampled so"""


@dataclass(slots=True, eq=False)
class Turn:
    """One that was sampled, or the root of a tree, before all of them."""

    number: int
    parent: Turn | None
    context: tuple[Message, ...]
    """the messages between its parent and itself"""
    context_meaning: tuple[Meaning, ...]
    said: Message
    line: TokenSession | None
    """where its tokens are; None: the root has none"""
    kept: int
    """tokens of the line that are there without it"""
    begin: int
    end: int
    """of its own tokens in the line"""
    cut_off: End | None = None
    """what cut it off before it was done"""
    children: list[Turn] = field(default_factory=list["Turn"])
    drift: set[Drift] = field(default_factory=set[Drift])
    """how it came back, in all requests so far"""
    came_back: Message | None = None
    """as it first came back in another form"""
    said_meaning: Meaning = field(init=False)

    def __post_init__(self) -> None:
        self.said_meaning = meaning_of(self.said)

    @property
    def tokens(self) -> Tokens:
        """Return all tokens up to its end, its own and those before them."""
        return np.empty(0, np.int32) if self.line is None else self.line.tokens[: self.end]

    @property
    def is_last_of_line(self) -> bool:
        """Return whether its line can simply go on."""
        return self.line is not None and len(self.line.tokens) == self.end

    def path(self) -> list[Turn]:
        """Return the turns from the first turn to this one, without the root."""
        found: list[Turn] = []
        turn = self
        while turn.parent is not None:
            found.append(turn)
            turn = turn.parent
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request continues: after this turn, with the messages from `used` on."""

    turn: Turn
    used: int


class Trajectory:
    """The trees of one session: one for each set of tools. Not to be shared between tasks that
    change it at the same time; a change never awaits."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        """in the order of their numbers, without roots"""
        self.kept = 0
        """characters of the messages in it"""
        self._roots: dict[bytes, Turn] = {}
        self._normal: dict[str, str] = {}
        self._remembered_length = 0
        self._next = 1

    def root(self, tools: bytes) -> Turn:
        """`tools`: what is equal for the same tools."""
        if tools not in self._roots:
            nothing = Message("assistant", "")
            self._roots[tools] = Turn(0, None, (), (), nothing, None, 0, 0, 0)
        return self._roots[tools]

    def meanings(self, messages: Sequence[Message]) -> tuple[Meaning, ...]:
        """Return the meaning of each message. A text that comes again with each request is made
        normal once."""
        return tuple(meaning_of(message, self._remembered) for message in messages)

    def find(self, root: Turn, messages: Sequence[Message], meanings: Sequence[Meaning]) -> Place:
        """The last turn whose conversation the messages begin with, by their meaning.

        Of several, the one that uses most messages, and of those the latest.
        """
        best = Place(root, 0)
        front = [best]
        while front:
            front = [found for place in front for found in _next_places(place, meanings)]
            best = max([best, *front], key=lambda place: (place.used, place.turn.number))
        self._note_drift(best, messages)
        return best

    def find_by_tokens(self, place: Place, ids: Sequence[int]) -> tuple[Turn, list[int]]:
        """The last turn whose tokens `ids`, which are to follow the place, begin with; and the ids
        that follow that turn."""
        turn, left = place.turn, np.array(ids, np.int32)
        while (found := _child_by_tokens(turn, left)) is not None:
            left = left[len(found.tokens) - len(turn.tokens) :]
            found.drift.add(Drift.MESSAGES)
            turn = found
        return turn, left.tolist()

    def kind(
        self, place: Place, base: Turn, context: Sequence[Message], meanings: Sequence[Meaning]
    ) -> Kind:
        """Return the kind of a turn after `context` that would follow the place; its tokens follow
        those of `base`, which `find_by_tokens` may have found further on."""
        turn = place.turn
        if any(child.context_meaning == tuple(meanings) for child in turn.children):
            return Kind.RETRY
        if base is turn and any(_is_replaced(child, context, meanings) for child in turn.children):
            return Kind.EDITED
        if base is turn and turn.parent is None:
            return Kind.NEW if self.turns else Kind.FIRST
        if base is turn and any(message.role == "assistant" for message in context):
            return Kind.EDITED
        return Kind.CONTINUED if base.is_last_of_line else Kind.BRANCH

    def add(
        self,
        parent: Turn,
        context: Sequence[Message],
        meanings: Sequence[Meaning],
        said: Message,
        line: TokenSession,
        kept: int,
        begin: int,
    ) -> Turn:
        """Return a turn that was sampled, from position `begin` to the end of its line."""
        number, self._next = self._next, self._next + 1
        end = len(line.tokens)
        turn = Turn(number, parent, tuple(context), tuple(meanings), said, line, kept, begin, end)
        parent.children.append(turn)
        self.turns.append(turn)
        self.kept += sum(map(_size, (*turn.context, said)))
        return turn

    def remove(self, turn: Turn) -> bool:
        """Forget a turn that nobody got, and its tokens; False, and nothing is done, where others
        follow it: then somebody got it."""
        assert turn.line is not None
        assert turn.parent is not None
        if turn.children or not turn.is_last_of_line:
            return False
        turn.line.cut(turn.kept)
        turn.parent.children.remove(turn)
        self.turns.remove(turn)
        return True

    def _note_drift(self, place: Place, messages: Sequence[Message]) -> None:
        """Compare the turns on the way with what came back of them."""
        at = place.used
        for turn in reversed(place.turn.path()):
            sent = messages[at - 1]
            if sent not in (turn.said, turn.came_back):
                turn.drift |= drift_of(turn.said, sent)
                if turn.came_back is None:
                    turn.came_back = sent
                    self.kept += _size(sent)
            at -= len(turn.context) + 1

    def _remembered(self, text: str) -> str:
        found = self._normal.get(text)
        if found is None:
            self._remembered_length += len(text)
            if self._remembered_length > _MOST_REMEMBERED:
                self._normal, self._remembered_length = {}, len(text)
            found = self._normal[text] = normal_text(text)
        return found


def _next_places(place: Place, meanings: Sequence[Meaning]) -> Iterator[Place]:
    for child in place.turn.children:
        at = place.used + len(child.context)
        if (
            at < len(meanings)
            and meanings[at] == child.said_meaning
            and tuple(meanings[place.used : at]) == child.context_meaning
        ):
            yield Place(child, at + 1)


def _is_replaced(turn: Turn, context: Sequence[Message], meanings: Sequence[Meaning]) -> bool:
    """Return whether the messages have another turn of the policy where this one was sampled."""
    at = len(turn.context)
    return (
        at < len(context)
        and context[at].role == "assistant"
        and tuple(meanings[:at]) == turn.context_meaning
    )


def _size(message: Message) -> int:
    """Characters, also of what a template leaves out."""
    calls = (len(c.name) + len(json_bytes(c.arguments)) for c in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + sum(calls)


def _child_by_tokens(turn: Turn, ids: Tokens) -> Turn | None:
    """The latest child whose tokens the ids begin with."""
    begin = len(turn.tokens)
    for child in reversed(turn.children):
        own = child.tokens[begin:]
        if len(own) <= len(ids) and np.array_equal(own, ids[: len(own)]):
            return child
    return None
