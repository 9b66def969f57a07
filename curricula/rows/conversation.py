"""A row as a conversation, and the settings that say how a row holds one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engines.types import Message, Tool
from infra.config import Config

_PLACEHOLDER = re.compile(
    r"(?<![`\"'])(?:<\|?(?:vision_start\|><\|)?(image|img|video|audio|speech)(?:_pad|_soft_token)?"
    r"[_ ]?\d*\|?>|\[(?:IMG|IMAGE|AUDIO|VIDEO)\])"
    r"(?! (?:tag|element|token|placeholder|marker|tensor|type)s?\b)"
)
"""stands in a question for what is shown beside it"""

_OPENS_TURN = re.compile(
    r"^(?:<s>)?(?:<\|im_start\|>(?:system|user|assistant)\n|<\|start_header_id\|>\w+<"
    r"|<start_of_turn>(?:user|model)\n|<extra_id_1>(?:System|User|Assistant)\n|\[INST\] )",
    re.MULTILINE,
)
"""with which templates of some models open a turn"""
Layout: TypeAlias = Literal["auto", "openai", "sharegpt"]
"""auto: what the messages of a row look like"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one row says."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    weight: float = 1.0
    """factor of its loss"""
    untrained: frozenset[int] = frozenset()
    """places of the assistant's messages that are only read"""
    layout: str = field(default="", compare=False)
    """what the row looks like, for a person"""
    unread: frozenset[str] = field(default=frozenset(), compare=False)
    """columns, and fields inside them, that say something and change nothing"""


@dataclass(frozen=True, slots=True)
class Document(Conversation):
    """A row that is one text and has no messages."""

    text: str = ""


def fault_of(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Return what keeps messages from being a conversation that can be learned; empty for none."""
    for at, message in enumerate(messages):
        if message.reasoning and message.content.lstrip().startswith("<think>"):
            return f"messages[{at}]: has a thought beside its text, and one in it; leave one out"
    return fault_of_text(messages) or _fault_of_order(messages) or fault_of_calls(messages, tools)


def fault_of_text(messages: Sequence[Message]) -> str:
    """The placeholder of an image or of sound in what is asked, or turns that a template has
    written into one text; empty for none. A tag that is closed, is quoted or is called one (`the
    <image> tag`) is meant as a word."""
    for at, message in enumerate(messages):
        text = message.content
        if "<" not in text and "[" not in text:
            continue
        if opened := _OPENS_TURN.search(text):
            return (
                f"messages[{at}]: its text has {opened[0].strip()!r}, with which a chat template"
                " opens a turn; write each turn as a message, without a template's marks"
            )
        if message.role in ("assistant", "system"):
            continue
        found = _PLACEHOLDER.search(text)
        if found and f"</{found[1]}>" not in text:
            return (
                f"messages[{at}]: has {found[0]}, which stands for something that no model here is"
                " shown; leave such rows out, or write `` `<image>` `` where the word is meant"
            )
    return ""


def fault_of_calls(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Return what is wrong between calls, their results and the tools of a row; empty for nothing.
    The calls of the last message have no results yet."""
    known = {tool.name for tool in tools}
    calls, results, caller = 0, 0, 0
    for at, message in enumerate(messages):
        if message.role == "tool":
            results += 1
            if results > calls:
                return f"messages[{at}]: a tool answers, but was not called{_called(calls)}"
            continue
        if results < calls:
            break
        calls, results, caller = len(message.tool_calls), 0, at
        for call in message.tool_calls:
            if known and call.name not in known:
                return (
                    f"messages[{at}]: calls {call.name}, which is not among the row's tools:"
                    f" {', '.join(sorted(known))}"
                )
    if results < calls and caller < len(messages) - 1:
        return (
            f"messages[{caller}]: it makes {calls} calls, and {results} results follow; each call"
            " needs one, in a message of its own"
        )
    return ""


def _called(calls: int) -> str:
    """Return what follows the words about a result too many."""
    if calls:
        return f": the message before makes {calls} calls, and has a result for each"
    return "; calls are read from `tool_calls`, not from a message's text"


def _fault_of_order(messages: Sequence[Message]) -> str:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        return "the assistant says nothing"
    if roles[0] == "assistant":
        return "the assistant speaks first; there is nothing that it answers"
    if roles[-1] != "assistant":
        return f"the last message is not the assistant's but of role {roles[-1]}"
    for at, role in enumerate(roles):
        if role == "assistant" and roles[at - 1] == "assistant":
            return f"messages[{at - 1}] and messages[{at}] are both the assistant's"
        if role == "system" and at > 0:
            return f"messages[{at}]: a system message comes first or not at all"
    return ""


class Columns(Config):
    """Names of the columns of a file. A row that lacks a column named here is a bad row. `a.b` is
    the field b of a column of objects; `a+b` are two texts, one below the other."""

    messages: str = ""
    """empty: `messages` (OpenAI), `conversations` or `conversation` (ShareGPT)"""
    prompt: str = ""
    """of rows without messages, what is asked: a text, or the messages before the answer; empty:
    `instruction` with `input` or `context`, `prompt`, `question`, `problem`, `query`, `input`,
    `inputs`"""
    completion: str = ""
    """of such rows, the answer; empty: the first that a layout has of `output`, `completion`,
    `response`, `answer`, `answers`, `solution`, `target`, `targets`, `outputs`"""
    tools: str = ""
    """empty: `tools`, where a row has it"""
    system: str = ""
    """text of a system message that comes first; empty: `system`, `system_prompt` or
    `system_message`, where a row has it"""
    weight: str = ""
    """factor of the row's loss, at least 0; empty: `weight`, where a row has it, or 1"""
