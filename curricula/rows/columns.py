"""Settings of how a row holds a conversation."""

from __future__ import annotations

from typing import Literal, TypeAlias

from infra.config import Config

Layout: TypeAlias = Literal["auto", "openai", "sharegpt"]
"""auto: what the messages of a row look like"""


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
