"""Whether two models read and write conversations in the same tokens, by a checksum of some."""

from __future__ import annotations

import hashlib
import json

from engines.chat.chat import Chat
from engines.types import Message, Problem, Tool

_ASKED = Message("user", 'What is 12 + 30?\nSay "rouge", \u8272 or #f00: `color = "..."`')
_TOOL = Tool("search", "Search the index.", {"q": "string"}, ("q",))


def format_checksum(chat: Chat) -> str:
    """Of the ids of the same prompts: with thinking on and off, with and without tools."""
    prompts = [
        chat.prompt_ids(Problem("probe", "probe", (_ASKED,), tools=tools, thinking=thinking))
        for tools in ((), (_TOOL,))
        for thinking in (False, True)
        if chat.can_call_tools or not tools
    ]
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
