"""Settings of a user's own files of messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from infra.config import RESULT_NEUTRAL, Config


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


class MessageFiles(Config):
    """One source of conversations."""

    files: list[str] = Field(min_length=1)
    """JSONL (`.jsonl`, `.jsonl.gz`) or Parquet (`.parquet`) files: paths relative to the recipe's
    file, any fsspec URLs, patterns (`chats/*.jsonl`)"""
    format: Literal["auto", "openai", "sharegpt"] = "auto"
    """how a row holds its messages; auto: what its messages look like"""
    columns: Columns = Columns()
    """names of the columns, where they are not the usual ones"""
    weight: PositiveFloat = Field(default=1.0, allow_inf_nan=False)
    """share of the sequences, relative to the weights of the other sources"""
    max_bad_share: Annotated[float, Field(ge=0, le=1), RESULT_NEUTRAL] = 0.01
    """most rows that may be left out, of those that were read (of 1,000 at least, or of all where
    there are fewer); with more the stage stops and names the first"""
