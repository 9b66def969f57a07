"""Settings of how a row holds a conversation."""

from __future__ import annotations

from typing import Literal, TypeAlias

from infra.config import Config

Layout: TypeAlias = Literal["auto", "openai", "sharegpt"]
"""auto: what the messages of a row look like"""


class Columns(Config):
    """Names of the columns of a file. A row that lacks a column named here is a bad row."""

    messages: str = ""
    """empty: `messages` (OpenAI) or `conversations` (ShareGPT)"""
    tools: str = ""
    """empty: `tools`, where a row has it"""
    system: str = ""
    """text of a system message that comes first; empty: `system`, where a ShareGPT row has it"""
    weight: str = ""
    """factor of the row's loss, at least 0; empty: every row counts 1"""
