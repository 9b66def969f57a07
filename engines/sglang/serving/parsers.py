"""Which of SGLang's parsers read a model's tool calls and thoughts, by its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engines.chat.folder import load_chat_folder
from engines.chat.pieces import Pieces
from engines.families.common.config import read_config
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


def parsers_of(folder: Path) -> Parsers:
    """For the two forms of calls that Tributary trains, the parser of exactly that form; for others
    what SGLang finds. Raises InputError for a folder without a chat template."""
    chat = load_chat_folder(folder)
    pieces = Pieces(chat.template)
    form = pieces.call_form()
    if form == "glm":
        # GLM-4.5 writes a line feed after the tool's name, GLM-4.7 and our random models do not.
        is_bare = "<tool_call>tool<arg_key>" in pieces.turn(_CALLER, thinking=False)
        tools = "glm47" if is_bare else "glm45"
        return Parsers(tools, "glm45" if pieces.thinking_switchable else AUTO)
    if form == "hermes":
        is_qwen = str(read_config(folder).get("model_type", "")).startswith("qwen")
        return Parsers("qwen25" if is_qwen else "hermes",
                       "qwen3" if pieces.thinking_switchable else AUTO)  # fmt: skip
    return Parsers(AUTO, AUTO)
