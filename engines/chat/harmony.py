"""OpenAI's harmony, in which gpt-oss writes: a turn is one message or several, each on a channel.

    <|channel|>analysis<|message|>a thought<|end|>
    <|start|>assistant<|channel|>commentary<|message|>what the user hears before a call<|end|>
    <|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{"k": "v"}
    <|start|>assistant<|channel|>final<|message|>the answer

A thought may come first, and a text before a call; an answer or one call ends the turn, the one
with `<|return|>` and the other with `<|call|>`. Models write a call's recipient behind its channel,
templates before it. `<|end|>` ends a message within the turn, so that it never ends generation,
although templates write it behind the answer of an earlier turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.chat.call_arguments import CallError, short
from engines.chat.call_forms import HARMONY, parse_calls
from engines.chat.chat_turns import Thought, ThoughtForm, TurnParser
from engines.types import Problem, ToolCall

_ANALYSIS, _COMMENTARY, _FINAL = "analysis", "commentary", "final"
_END = "<|end|>"
_NEXT = "<|start|>assistant"
"""the header of each message"""
THOUGHTS = ThoughtForm(
    opening=f"<|channel|>{_ANALYSIS}<|message|>", closing=_END, after_close=_NEXT
)
_MESSAGE = re.compile(
    r"(?P<before> to=[^\s<>]+)?<\|channel\|>(?P<channel>[^\s<>]*)(?P<behind> to=[^\s<>]+)?"
    r"(?P<type> ?(?:<\|constrain\|>)?json)?<\|message\|>(?P<body>.*)",
    re.DOTALL,
)
_MARK = re.compile(r"<\|(?:start|channel|constrain|message|end|call|return)\|>")


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A message of a turn."""

    channel: str
    recipient: str
    body: str
    whole: str

    @classmethod
    def read(cls, text: str) -> _Spoken:
        found = _MESSAGE.fullmatch(text)
        if found is None:
            raise CallError(f"a message does not begin with its channel: {short(text)}")
        if mark := _MARK.search(found["body"]):
            raise CallError(f"{mark[0]} inside a message")
        channel, recipient = found["channel"], found["before"] or found["behind"] or ""
        if channel not in (_ANALYSIS, _COMMENTARY, _FINAL):
            raise CallError(f"unknown channel {short(channel)}")
        if found["before"] and found["behind"]:
            raise CallError("a message has two recipients")
        if recipient and channel != _COMMENTARY:
            raise CallError(f"a tool call on the channel {channel}, not on {_COMMENTARY}")
        if found["type"] and not recipient and channel != _FINAL:
            raise CallError(f"JSON without a recipient on the channel {channel}")
        return cls(channel, recipient, found["body"], text)


@dataclass(frozen=True, slots=True)
class HarmonyParser(TurnParser):
    """Parses turns of gpt-oss."""

    def read(
        self, problem: Problem, text: str, thought: Thought
    ) -> tuple[str | None, str, tuple[ToolCall, ...]]:
        """Return a turn's thought, text and calls. Raises CallError."""
        *before, last = map(_Spoken.read, text.split(f"{_END}{_NEXT}"))
        reasoning = before.pop(0).body if before and before[0].channel == _ANALYSIS else None
        if last.channel == _FINAL and not before:
            return reasoning, last.body, ()
        if not last.recipient:
            more = f", and {len(before)} more messages before it" if before else ""
            raise CallError(f"the turn ends on the channel {last.channel}{more}")
        spoken = [each.body for each in before if each.channel == _COMMENTARY]
        if len(spoken) < len(before) or len(spoken) > 1 or any(each.recipient for each in before):
            raise CallError("other messages before a tool call than a thought and a text")
        if self.calls is not HARMONY:
            raise CallError("a tool call, which the chat template cannot write")
        return reasoning, "".join(spoken), tuple(parse_calls(last.whole, problem.tools, HARMONY))
