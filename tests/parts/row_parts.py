"""Rows of a person's files, and what is read of them."""

from __future__ import annotations

from typing import Any

import pytest

from curricula.prompt_files.prompt import Prompt, read_prompt
from curricula.prompt_files.spec import PromptSource
from curricula.rows.conversation import Columns, Conversation
from curricula.rows.layouts import read_row
from infra.data_files.rows import BadRow

ASK, ANSWER = {"role": "user", "content": "12+30"}, {"role": "assistant", "content": "42"}


def sft(row: dict[str, Any], **columns: str) -> Conversation:
    return read_row(row, Columns(**columns), "auto")


def prompt(row: dict[str, Any], **fields: Any) -> Prompt:
    return read_prompt(row, PromptSource.model_validate({"files": ["x.jsonl"], **fields}))


def refusal(row: dict[str, Any], **columns: str) -> str:
    with pytest.raises(BadRow) as refused:
        sft(row, **columns)
    return str(refused.value)


def talk(*said: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(said), **more}
