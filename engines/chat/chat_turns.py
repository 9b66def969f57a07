"""What the model wrote in one turn, parsed strictly: a turn is well formed, or it says why not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engines.chat.call_arguments import CallError
from engines.chat.call_forms import LLAMA3, CallForm, parse_calls
from engines.types import AssistantTurn, Problem, ToolCall

THINK, END_THINK = "<think>", "</think>"


class Thought(StrEnum):
    """Says what the assistant's header leaves to the model."""

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
    """Says how a template sets a thought, to take away exactly what it adds."""

    after_open: str = ""
    before_close: str = ""
    after_close: str = ""
    behind_closed: str = ""
    """before the text of a turn whose header has an empty thought"""
    opening: str = THINK
    closing: str = END_THINK

    def is_open(self, text: str, thought: Thought) -> bool | None:
        """Say whether a turn that begins so is in its thought; None: one may still begin."""
        if thought is Thought.CLOSED or self.closing in text:
            return False
        if thought is Thought.OPEN or self.opening in text:
            return True
        return False if text.strip() and not self.opening.startswith(text.strip()) else None

    def closed_by(self, text: str) -> str:
        """Return what the template writes to end a thought that this text leaves open."""
        missing = "" if text.endswith(self.before_close) else self.before_close
        return f"{missing}{self.closing}{self.after_close}"

    def split(self, text: str, thought: Thought) -> tuple[str | None, str]:
        """Reasoning (None if the turn has none) and the rest. Raises CallError if tags are off."""
        if thought is Thought.OPEN:
            text = THINK + text
        elif text.lstrip().startswith(THINK):  # GLM writes a line feed before it
            text = text.lstrip()
        opened, closed = text.count(THINK), text.count(END_THINK)
        if opened == closed == 0 and thought is Thought.OPTIONAL:
            return None, text
        if opened == closed == 0 and thought is Thought.CLOSED:
            return None, text.removeprefix(self.behind_closed)
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
    calls_once: bool = False
    """whether the template writes one call a turn at most"""
    calls_have_ids: bool = False
    """whether the template writes an id with each call, by which it calls the result"""

    def parse(self, problem: Problem, text: str, thought: Thought) -> AssistantTurn:
        """`text` is the turn without its stop token."""
        try:
            reasoning, content, calls = self.read(problem, text, thought)
        except CallError as error:
            return AssistantTurn(text, text, None, (), error=str(error))
        return AssistantTurn(text, content, reasoning, calls)

    def read(
        self, problem: Problem, text: str, thought: Thought
    ) -> tuple[str | None, str, tuple[ToolCall, ...]]:
        """Return a turn's thought, text and calls. Raises CallError."""
        reasoning, visible = self.form.split(text, thought)
        return reasoning, *self._calls(problem, visible)

    def _calls(self, problem: Problem, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        if self.calls is None or (self.calls is LLAMA3 and not problem.tools):
            return text, ()
        start = self.calls.find(text)
        content = text if start < 0 else text[:start]
        if stray := next((mark for mark in self.calls.inside if mark in content), ""):
            raise CallError(f"{stray} outside a tool call")
        if start < 0:
            return content, ()
        calls = parse_calls(text[start:], problem.tools, self.calls)
        if self.calls_once and len(calls) > 1:
            raise CallError(f"{len(calls)} calls in one turn: the chat template writes one")
        if self.calls_have_ids and not all(call.id for call in calls):
            raise CallError("a call lacks its id, by which the chat template calls its result")
        return content.rstrip("\n"), tuple(calls)
