"""Why a row cannot be used."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """What bad rows are counted by."""

    NOT_JSON = "not_json"
    COLUMNS = "columns"
    """a column is missing or holds something else"""
    MESSAGES = "messages"
    """a message cannot be read, or their order makes no conversation"""
    TOOLS = "tools"
    """tools or calls of tools cannot be read, or the model's template writes none"""
    REFERENCE = "reference"
    """what an answer is compared with is empty, or lacks what its pattern looks for"""
    SAME_ID = "same_id"
    """another row with another prompt has its id"""
    TEMPLATE = "template"
    """the model's chat template refuses the conversation"""
    TOO_LONG = "too_long"
    """longer than the model's context"""
    NOTHING_TRAINED = "nothing_trained"
    """the loss mask is empty"""
    CONTAMINATED = "contaminated"
    """shares words with a held-out row: left out, and not counted as bad"""


class BadRow(Exception):
    """The row is left out; the text says what is wrong with it."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
