"""How many rows were read, and which were left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning

JUDGED_ROWS = 1000
"""rows after which their share of bad ones is looked at"""
_NAMED = 5
"""bad rows of each reason that are named"""
_MANY = 0.05
"""share of rows that were left out, from which it is a warning"""


@dataclass(slots=True)
class RowTally:
    """What became of rows that were read once each."""

    read: int = 0
    bad: Counter[str] = field(default_factory=Counter[str])
    """by reason"""
    named: list[str] = field(default_factory=list[str])
    """the first of each reason: file, line and what is wrong"""

    @property
    def num_bad(self) -> int:
        return self.bad.total() - self.num_contaminated - self.bad[Reason.UNDECIDED]

    @property
    def num_contaminated(self) -> int:
        """Rows that are fine, but share words with what is held out."""
        return self.bad[Reason.CONTAMINATED]

    def left_out(self, where: str, error: BadRow) -> None:
        self.read += 1
        self.bad[error.reason] += 1
        if self.bad[error.reason] <= _NAMED:
            self.named.append(f"{where}: {error}")

    def judge(self, files: Sequence[str], num_rows: int, max_bad_share: float) -> None:
        """Raises TrainingStopped if more than this share of the rows are bad: of those read, of
        1,000 at least, or of all where there are fewer."""
        judged = max(self.read, min(JUDGED_ROWS, num_rows))
        if self.num_bad <= max_bad_share * judged:
            return
        reasons = ", ".join(f"{n} {why}" for why, n in self.bad.most_common())
        first = "\n".join(f"  {line}" for line in self.named)
        which = "" if self.read == num_rows else "first "
        raise TrainingStopped(
            f"{self.num_bad} of the {which}{self.read} rows of {', '.join(files)} cannot be used"
            f" ({reasons}), more than max_bad_share {max_bad_share:g}; correct them, or raise"
            f" max_bad_share. The first (`tributary preview --json` lists all):\n{first}"
        )

    def as_json(self) -> dict[str, Any]:
        return {"read": self.read, "bad": dict(self.bad), "named": list(self.named)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RowTally:
        return RowTally(value["read"], Counter(value["bad"]), list(value["named"]))


def many_left_out(tallies: Sequence[RowTally]) -> Iterator[StageWarning]:
    """A warning if many of the rows that a stage read were left out."""
    bad = sum((each.bad for each in tallies), start=Counter[str]())
    read = sum(each.read for each in tallies)
    if bad.total() <= _MANY * read:
        return
    named = [line for each in tallies for line in each.named]
    reasons = ", ".join(f"{count} {reason}" for reason, count in bad.most_common())
    yield StageWarning(
        what=f"{bad.total()} of the {read} rows that were read were left out",
        cause=f"{reasons}; e.g. {'; '.join(named[:2])}",
        advice="correct them, or say which columns hold what; `tributary preview` shows it",
        figures={"left_out": bad.total(), "read": read},
    )


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
    UNDECIDED = "undecided"
    """says of no answer that it is better than another: left out, and not counted as bad"""
    CONTAMINATED = "contaminated"
    """shares words with a held-out row: left out, and not counted as bad"""


class BadRow(Exception):
    """The row is left out; the text says what is wrong with it."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
