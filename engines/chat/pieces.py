"""The pieces a template renders, found by comparing renderings of small stand-in conversations, and
whether a template keeps a conversation as it was once more messages follow.

A turn's text cannot depend on the turns before it, or rollouts (which only append) and training
would see different ids; `training_text` verifies that for whole conversations.

A rendering may differ from the beginning of a longer one in what the template itself adds:

- an empty thought that comes and goes (Qwen3, GLM), wherever the two differ, and nowhere else: one
  that stands in somebody's text stands in both
- the end token of the whole text, which only the last rendering has (Phi-3)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

from engines.chat.call_forms import CallForm, form_of
from engines.chat.mode import OPEN_THOUGHT, Thoughts, mode_of
from engines.chat.template import ChatTemplate
from engines.types import Message, Problem, Tool, ToolCall
from infra.errors import InputError

_EMPTY_THOUGHT = re.compile(r"<think>\s*</think>")
_NEAR = 64
"""characters around a difference in which the empty thought that makes it begins"""


@dataclass(frozen=True, slots=True)
class Follow:
    """Holds what comes after a rendering in a longer one."""

    text: str
    dropped: int
    """characters at the end of the shorter rendering that the longer one does not have"""


def what_follows(before: str, longer: str, end_text: str, pad: str | None) -> Follow | None:
    """Return what `longer` has behind `before`; None if it changes more than a template adds.
    `end_text`: the folder's end token; `pad`: what the template writes behind an empty thought,
    None where that is not known."""
    reached = _reached(before, longer, pad)
    if reached is not None:
        return Follow(longer[reached:], 0)
    kept = before.rstrip().removesuffix(end_text) if end_text else before
    reached = _reached(kept, longer, pad) if len(kept) < len(before.rstrip()) else None
    return None if reached is None else Follow(longer[reached:], len(before) - len(kept))


def empty_thought_length(text: str, pad: str | None) -> int:
    """Characters of an empty thought with which a text begins, with what separates it from the
    rest; 0 where there is none."""
    found = _EMPTY_THOUGHT.match(text, len(text) - len(text.lstrip()))
    return 0 if found is None else _ends(text, found.end(), pad)[0]


def _ends(text: str, end: int, pad: str | None) -> range:
    """List where an empty thought may end with the white space behind it, the last place first."""
    if pad is not None and text.startswith(pad, end):
        return range(end + len(pad), end + len(pad) - 1, -1)
    spaces = len(text) - end - len(text[end:].lstrip())
    return range(end + spaces, end - 1, -1)


def _reached(before: str, longer: str, pad: str | None) -> int | None:
    """Return up to where `longer` is `before`; None if it is not."""
    if longer.startswith(before):
        return len(before)
    at = other = 0
    while True:
        same = _common(before, at, longer, other)
        at, other = at + same, other + same
        if at == len(before):
            return other
        if (passed := _passed(before, at, longer, other, pad)) is not None:
            at, other = passed
        elif (passed := _passed(longer, other, before, at, pad)) is not None:
            other, at = passed
        else:
            return None


def _passed(
    text: str, at: int, other_text: str, other: int, pad: str | None
) -> tuple[int, int] | None:
    """Both places once the empty thought around `at`, which only `text` has, is passed."""
    for found in _EMPTY_THOUGHT.finditer(text, max(0, at - _NEAR)):
        if found.start() > at:
            return None
        if at < found.end() and other >= at - found.start():
            other -= at - found.start()
            ends = _ends(text, found.end(), pad)
            return max(ends, key=lambda end: _common(text, end, other_text, other)), other
    return None


def _common(one: str, at: int, two: str, other: int) -> int:
    """Count the characters that are the same from these places on."""
    low, high = 0, min(len(one) - at, len(two) - other)
    while low < high:
        middle = (low + high + 1) // 2
        if one[at : at + middle] == two[other : other + middle]:
            low = middle
        else:
            high = middle - 1
    return low


_USER = Message("user", "u")
_CALL = ToolCall("tool", {"key": "value"})
_TOOL = Tool("tool", "", {"key": "string"})
_CALLER = Message("assistant", "", tool_calls=(_CALL,))
_CLOSED_THOUGHT = re.compile(r"</think>(\s*)\Z")
_MARK = "Q0Q"
"""content of a stand-in, used to find it in a rendering"""


class Pieces:
    """Text of prompts, turns and continuations under one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self._openings = {
            t: template.render([_USER], thinking=t, open_turn=True) for t in (False, True)
        }
        self._stand_ins: dict[tuple[int, str | None, bool], str] = {}
        self.mode = mode_of(template)
        self.thinking_switchable = self._openings[False] != self._openings[True]
        self.opens_thought = OPEN_THOUGHT.search(self._openings[True]) is not None

    def prompt(self, problem: Problem) -> str:
        return self.template.render(
            problem.messages, tools=problem.tools, thinking=bool(problem.thinking), open_turn=True
        )

    def opening(self, thinking: bool) -> str:
        """Return a prompt's text; only its end, the assistant's header, matters."""
        return self._openings[thinking]

    def turn(self, turn: Message, thinking: bool) -> str:
        """Return what follows the header when the assistant says this turn and it is the last."""
        full, start = self.said(turn, thinking)
        return full[start:]

    def said(self, turn: Message, thinking: bool) -> tuple[str, int]:
        """Return a conversation that ends with this turn, and where in it the turn begins."""
        if len(turn.tool_calls) > 1 and self.calls_once:
            raise InputError(
                f"{self.template.name}: the chat template writes one call a turn, and one has"
                f" {len(turn.tool_calls)}"
            )
        full = self.template.render([_USER, turn], thinking=thinking)
        opening = without_open_thought(self._openings[thinking], full)
        text = self._rest(full, opening, "the header that opens the assistant's turn")
        self._check_thought(turn, text)
        return full, len(opening)

    def last(self) -> tuple[str, int]:
        """Return a conversation, and where the text of its last turn ends."""
        full, _ = self.said(Message("assistant", _MARK), thinking=False)
        return full, full.rfind(_MARK) + len(_MARK)

    def earlier(self) -> tuple[str, int]:
        """Return a conversation, and where the text of a turn ends that another message follows."""
        said = Message("assistant", _MARK)
        text = self.template.render([_USER, said, _USER], open_turn=True)
        return text, text.find(_MARK) + len(_MARK)

    def called(self, form: CallForm) -> tuple[str, int]:
        """Return a conversation, and where the text of a turn with tool calls ends."""
        try:
            text = self.template.render([_USER, _CALLER, Message("tool", _MARK)], open_turn=True)
        except InputError:  # it may know calls and no results
            text = self.template.render([_USER, _CALLER])
        _, behind = form.read(text[text.rfind(form.opening) :], {_TOOL.name: _TOOL})
        return text, len(text) - len(behind)

    def continuation(
        self, new: Sequence[Message], thinking: bool, called: Sequence[ToolCall] = ()
    ) -> tuple[str, int]:
        """Return a conversation in which `new` (tool results) and another turn's header follow a
        finished turn, and where in it that turn ends. `called`: that turn's calls."""
        calls = (_CALL,) if any(m.role == "tool" for m in new) else ()
        if calls and called and (self.template.needs_ids or self._names_results):
            calls = tuple(replace(_CALL, name=each.name, id=each.id) for each in called)
        # With a thought, or Qwen3's template writes an empty one in the first rendering only.
        thought = "r" if calls and all(m.role == "tool" for m in new) else None
        has_channel = self.mode.thoughts is Thoughts.CHANNEL
        said = Message("assistant", "" if calls and has_channel else _MARK, thought, calls)
        before = self._before(said, thinking)
        after = self.template.render([_USER, said, *new], thinking=thinking, open_turn=True)
        rest = self.follow(before, after)
        if rest is None:
            self._refuse(after, before, "an assistant's turn that is followed by others")
        return after, len(after) - len(rest.text)

    def _before(self, said: Message, thinking: bool) -> str:
        """Return a rendering that ends with a stand-in turn: each is needed again and again."""
        key = (len(said.tool_calls), said.reasoning, thinking)
        if any(call != _CALL for call in said.tool_calls):  # each is needed once
            return self.template.render([_USER, said], thinking=thinking)
        if key not in self._stand_ins:
            self._stand_ins[key] = self.template.render([_USER, said], thinking=thinking)
        return self._stand_ins[key]

    @cached_property
    def _names_results(self) -> bool:
        """Say whether the template writes the name of a call before its result."""
        called = replace(_CALLER, tool_calls=(replace(_CALL, name=_MARK),))
        try:
            texts = [
                self.template.render([_USER, called, *more]) for more in ([], [Message("tool", "")])
            ]
        except InputError:
            return False
        return texts[1].count(_MARK) > texts[0].count(_MARK)

    @property
    def thought_pad(self) -> str | None:
        """Return what the template writes behind an empty thought; None if no header shows it."""
        found = _CLOSED_THOUGHT.search(self._openings[False])
        return found[1] if found else None

    def follow(self, before: str, longer: str) -> Follow | None:
        """Return what a longer conversation has behind this one; None if that changes it."""
        return what_follows(before, longer, self.template.end_text, self.thought_pad)

    def _check_thought(self, turn: Message, text: str) -> None:
        if turn.reasoning and turn.reasoning.strip() not in text:
            raise InputError(
                f"{self.template.name}: the chat template drops a turn's reasoning; a thinking "
                "model needs a template that writes `reasoning_content`"
            )

    def call_form(self) -> CallForm | None:
        """Return the form in which the template writes tool calls; None if we do not parse it."""
        try:
            text = self.turn(_CALLER, thinking=False)
        except InputError:  # a template that knows no tools may refuse them
            return None
        return form_of(text, _CALL, _TOOL)

    def have_ids(self, form: CallForm | None) -> bool:
        """Say whether the template writes an id with each call."""
        if form is None:
            return False
        text = self.turn(_CALLER, thinking=False)
        return bool(form.read(text[form.find(text) :], {_TOOL.name: _TOOL})[0][0].id)

    @cached_property
    def calls_once(self) -> bool:
        """Say whether the template refuses two calls in one turn, or leaves the second out."""
        calls = (_CALL, replace(_CALL, name=_MARK))
        try:
            return _MARK not in self.template.render([_USER, replace(_CALLER, tool_calls=calls)])
        except InputError:
            return True

    def thought_pads(self) -> tuple[str, str, str, str]:
        """Return what the template writes after `<think>`, before `</think>`, and after it; and
        what it writes behind a header with an empty thought."""
        if self.mode.thoughts in (Thoughts.ALWAYS, Thoughts.FREE):
            return "\n", "\n", "\n\n", ""
        if not self.thinking_switchable:
            return "", "", "", ""
        said = Message("assistant", "C", reasoning="R")
        text = self.template.render([_USER, said], thinking=True)
        match = re.search(r"<think>(\s*)R(\s*)</think>(\s*)C", text)
        after_open, before_close, after_close = match.groups() if match else ("", "", "")
        behind = ""
        if self.thought_pad is not None:
            behind, _, _ = self.turn(Message("assistant", "C"), thinking=False).partition("C")
        return after_open, before_close, after_close, "" if behind.strip() else behind

    def _rest(self, full: str, prefix: str, what: str) -> str:
        if not full.startswith(prefix):
            self._refuse(full, prefix, what)
        return full[len(prefix) :]

    def _refuse(self, full: str, expected: str, what: str) -> NoReturn:
        at = next((i for i, (a, b) in enumerate(zip(full, expected, strict=False)) if a != b), None)
        at = min(len(full), len(expected)) if at is None else at
        raise InputError(
            f"{self.template.name}: the chat template does not keep the prefix: it changes {what} "
            f"once more turns follow. At character {at} it writes {full[at : at + 40]!r} where "
            f"{expected[at : at + 40]!r} was. Append-only rollouts need a template that leaves "
            "earlier turns as they were: change it there, or use another"
        )


def without_open_thought(header: str, full: str) -> str:
    """The header of a turn that has no thought, where the template would open one."""
    opened = OPEN_THOUGHT.search(header)
    if opened is None or full.startswith(header) or not full.startswith(header[: opened.start()]):
        return header
    return header[: opened.start()]
