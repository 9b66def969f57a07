"""Preference pairs in three layouts: what both begin with, and what is compared."""

from __future__ import annotations

from typing import Any

import pytest

from curricula.rows.pairs import Pair, PairColumns, read_pair
from engines.types import Message
from infra.data_files.bad_row import BadRow

pytestmark = pytest.mark.unit

ASK, BACK = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
GOOD, BAD = {"role": "assistant", "content": "Hello!"}, {"role": "assistant", "content": "No."}


def read(row: dict[str, Any], **columns: str) -> Pair:
    return read_pair(row, PairColumns(**columns), "auto")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "No."},
        {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "Hi", "chosen": [ASK, GOOD], "rejected": [ASK, BAD], "score": 1},
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"conversations": [ASK], "chosen": GOOD, "rejected": BAD},
        {
            "input": {"messages": [ASK]},
            "preferred_output": [GOOD],
            "non_preferred_output": [BAD],
        },
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Hello!",
            "rejected": "\n\nHuman: Hi\n\nAssistant: No.",
        },
    ],
    ids=["texts", "messages", "repeated", "whole", "llama-factory", "openai", "anthropic"],
)
def test_every_layout_says_the_same(row: dict[str, Any]):
    found = read(row)
    assert found.chosen.messages == (Message("user", "Hi"), Message("assistant", "Hello!"))
    assert found.rejected.messages == (Message("user", "Hi"), Message("assistant", "No."))
    assert found.chosen.untrained == found.rejected.untrained == frozenset()


def test_what_both_begin_with_is_only_read():
    talk = [ASK, BACK, ASK]
    found = read(
        {"better": [*talk, GOOD], "worse": [*talk, BAD]}, chosen="better", rejected="worse"
    )
    assert found.chosen.untrained == found.rejected.untrained == frozenset({1})
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    given = {"messages": [ASK], "tools": [tool]}
    found = read({"input": given, "preferred_output": [GOOD], "non_preferred_output": [BAD]})
    assert [tool.name for tool in found.rejected.tools] == ["look"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "Hi", "chosen": "a"}, "has no column rejected"),
        ({"prompt": "Hi", "chosen": "a", "rejected": "a"}, "chosen and rejected are equal"),
        (
            {"prompt": "Hi", "chosen_response": "a", "rejected_response": "b"},
            "name it, e.g. columns.chosen: chosen_response",
        ),
        ({"chosen": [ASK, GOOD], "rejected": [BACK, BAD]}, "rejected: the assistant speaks first"),
        (
            {"chosen": [ASK, GOOD], "rejected": [ASK | {"content": "Ho"}, BAD]},
            "do not begin with the same messages",
        ),
        (
            {"prompt": "Hi ", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
            "chosen: begins with another question than the prompt",
        ),
        ({"chosen": "Hello!", "rejected": "No."}, "a text without a prompt must begin with"),
        ({"input": {}, "preferred_output": [GOOD]}, "input: has no messages"),
    ],
)
def test_a_row_that_is_no_pair_is_refused(row: dict[str, Any], said: str):
    with pytest.raises(BadRow, match=said):
        read(row)
