"""Settings of a user's own files of messages."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat

from curricula.rows.columns import Columns, Layout
from infra.config import RESULT_NEUTRAL, Config


class MessageFiles(Config):
    """One source of conversations."""

    files: list[str] = Field(min_length=1)
    """JSONL, JSON arrays, CSV or Parquet, or folders of one of them: paths relative to the recipe's
    file, any fsspec URLs, patterns (`chats/*.jsonl`); FOLDER/SPLIT where a folder has splits"""
    format: Layout = "auto"
    """how a row holds its messages; auto: what its messages look like"""
    columns: Columns = Columns()
    """names of the columns, where they are not the usual ones"""
    weight: PositiveFloat = Field(default=1.0, allow_inf_nan=False)
    """share of the sequences, relative to the weights of the other sources"""
    max_bad_share: Annotated[float, Field(ge=0, le=1), RESULT_NEUTRAL] = 0.01
    """most rows that may be left out, of those that were read (of 1,000 at least, or of all where
    there are fewer); with more the stage stops and names the first"""
