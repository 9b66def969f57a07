"""Which of SGLang's parsers read a model's tool calls and thoughts, by its chat template.

SGLang's parsers assume that thinking is on where a request says nothing, and some that it is always
on. So every server is told what the template itself does then, and gets the parser that begins as
the template does: inside a thought, or outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines.chat.calls import CallForm
from engines.chat.chat_folder import load_chat_folder
from engines.chat.mode import Mode, Thoughts
from engines.chat.pieces import Pieces
from engines.chat.template import SWITCHES
from engines.families.common.model_config import read_config
from engines.types import Message, ToolCall

NONE = "none"
AUTO = "auto"
"""SGLang looks at the template itself"""
_CALLER = Message("assistant", "", tool_calls=(ToolCall("tool", {"key": "value"}),))


@dataclass(frozen=True, slots=True)
class Parsers:
    """Names of SGLang's parsers; `none` leaves the text as the model wrote it."""

    tools: str = NONE
    thinking: str = NONE
    defaults: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """`chat_template_kwargs` of requests that do not give them"""
    mode: str = ""
    """when the model thinks, in words"""


def parsers_of(folder: Path) -> Parsers:
    """For the two forms of calls that Tributary trains, the parser of exactly that form; for others
    what SGLang finds. Raises InputError for a folder without a chat template."""
    pieces = Pieces(load_chat_folder(folder).template)
    form, mode = pieces.call_form(), pieces.mode
    defaults = {mode.switch: mode.default} if mode.switch else {}
    if mode.thoughts is Thoughts.FREE:  # the parser of thoughts that the model opens itself
        defaults = {SWITCHES[0]: False}
    return Parsers(_tool_parser(pieces, folder), _thought_parser(mode, form), defaults, _said(mode))


def _tool_parser(pieces: Pieces, folder: Path) -> str:
    form = pieces.call_form()
    if form == "glm":
        # GLM-4.5 writes a line feed after the tool's name, GLM-4.7 and our random models do not.
        is_bare = "<tool_call>tool<arg_key>" in pieces.turn(_CALLER, thinking=False)
        return "glm47" if is_bare else "glm45"
    if form == "hermes":
        is_qwen = str(read_config(folder).get("model_type", "")).startswith("qwen")
        return "qwen25" if is_qwen else "hermes"
    return AUTO


def _thought_parser(mode: Mode, form: CallForm | None) -> str:
    match mode.thoughts:
        case Thoughts.NONE:
            return NONE
        case Thoughts.FOREIGN:
            return AUTO
        case Thoughts.ALWAYS:  # both begin inside a thought; the first ends it where a call begins
            return "qwen3-thinking" if form else "deepseek-r1"
        case Thoughts.FREE:
            return "qwen3"
        case Thoughts.SWITCHED if form == "glm":
            return "glm45"
        case Thoughts.SWITCHED:  # each reads the variable of its name
            return "qwen3" if mode.switch == SWITCHES[0] else "deepseek-v3"


def _said(mode: Mode) -> str:
    if mode.switch:
        state = "on" if mode.default else "off"
        return f"{state} unless a request's chat_template_kwargs have {mode.switch}"
    if mode.thoughts is Thoughts.ALWAYS:
        return "always on"
    return "left to the model" if mode.thoughts is Thoughts.FREE else "never"
