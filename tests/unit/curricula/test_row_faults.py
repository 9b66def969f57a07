"""Columns that hold what is no JSON: refused where they would count, named where nothing reads. And
texts that a search could go over again and again."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from datetime import date
from typing import Any

import pytest

from curricula.rows.conversation import Columns
from curricula.rows.layouts import read_row
from engines.types import Message
from infra.data_files.rows import BadRow, row_without_faults

pytestmark = pytest.mark.unit

ASK, ANSWER = {"role": "user", "content": "12+30"}, {"role": "assistant", "content": "42"}
SAID = (Message("user", "12+30"), Message("assistant", "42"))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("images", [{"bytes": b"PNG", "path": "cat.png"}], "has `images`, which is not read"),
        ("loss_mask", [b"1"], "has `loss_mask`, which is not read"),
        ("functions", ["\ud83d"], "has `functions`, which is not read; if it holds tools"),
        ("history", [[{"\ud83d": 1}]], "history: half an emoji is no text"),
        ("system", "Be brief \ud83d", "system: half an emoji is no text"),
        ("reasoning", "Add \ud83d", "reasoning: half an emoji is no text"),
        ("history", [["a", "\ud83d"]], "history: half an emoji is no text"),
    ],
)
def test_columns_that_count_are_refused_where_they_are_no_json(column: str, value: Any, said: str):
    asked = {"instruction": "12+30", "output": "42"}
    with pytest.raises(BadRow) as refused:
        read_row(row_without_faults(asked | {column: value}), Columns(), "auto")
    assert said in str(refused.value)


def test_columns_that_nothing_reads_are_named():
    row = {"messages": [ASK, ANSWER], "day": date(2024, 1, 1), "image": math.nan, "\ud83d": 1}
    read = read_row(row_without_faults(row), Columns(), "auto")
    assert (read.messages, read.unread) == (SAID, {"day", "?"}), "a terminal can show both"


def test_a_column_that_the_recipe_names_is_read():
    row = {"messages": [ASK, ANSWER], "loss_weight": 0.5}
    assert read_row(row, Columns(weight="loss_weight"), "auto").weight == 0.5


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answer": '[{"a' + '"role":' * 100_000},
        {"question": "q", "answer": '[{"a"role":' + "}]" * 200_000 + "x"},
        {"messages": [ASK, ANSWER], "tools": "\n" * 100_000 + "x"},
        {"messages": "\n" * 100_000 + "x"},
    ],
)
def test_a_long_text_is_looked_at_in_linear_time(row: dict[str, Any]):
    began = time.process_time()
    with suppress(BadRow):
        read_row(row, Columns(), "auto")
    assert time.process_time() - began < 5
