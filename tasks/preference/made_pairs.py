"""Turns the answers of a `distill` stage into preferences: to each problem its best and its worst
answer, by their outcomes.

Where all answers to a problem are equally good there is nothing to prefer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from curricula.rows.conversation import Conversation
from engines.rollout.records.dataset import DATA_FILE, DistilledRow, ParquetRows, row_of
from infra.errors import InputError


@dataclass(slots=True)
class _Ends:
    """Numbers of the rows with a problem's best and worst answers, the first of equal ones."""

    best: int
    best_outcome: float
    worst: int
    worst_outcome: float

    def take(self, number: int, outcome: float) -> None:
        if outcome > self.best_outcome:
            self.best, self.best_outcome = number, outcome
        if outcome < self.worst_outcome:
            self.worst, self.worst_outcome = number, outcome


def made_pairs(dataset: Path) -> Iterator[tuple[DistilledRow, DistilledRow]]:
    """The better and the worse answer to each problem of the artifact, in the order of their first
    answers. Raises InputError where there is none, and for rows without an outcome."""
    rows = ParquetRows(dataset / DATA_FILE)
    ends: dict[tuple[str, str], _Ends] = {}
    for number, known in enumerate(rows.columns(("domain", "problem_id", "rewards"))):
        problem, outcome = (known["domain"], known["problem_id"]), _outcome(known["rewards"])
        if problem in ends:
            ends[problem].take(number, outcome)
        else:
            ends[problem] = _Ends(number, outcome, number, outcome)
    unlike = [each for each in ends.values() if each.best_outcome > each.worst_outcome]
    if not unlike:
        best = max((each.best_outcome for each in ends.values()), default=0.0)
        raise InputError(
            f"data: of the {len(rows)} answers of the `distill` before it none is better than"
            f" another to its problem, and the best outcome is {best:g}; give that stage `samples:"
            " 2` or more, `min_outcome: 0`, so that it keeps worse answers, and `near_duplicate:"
            " 1`, so that it keeps short ones; or train longer before it"
        )
    for each in unlike:
        best, worst = (row_of(rows.row(number)) for number in (each.best, each.worst))
        yield best, worst


def conversation_of(row: DistilledRow) -> Conversation:
    """Return the conversation, to render it anew."""
    asked = row.problem.messages
    given = frozenset(at for at, message in enumerate(asked) if message.role == "assistant")
    return Conversation((*asked, *row.turns), row.problem.tools, untrained=given)


def _outcome(rewards: str) -> float:
    told = json.loads(rewards)
    if "outcome" not in told:
        raise InputError("data: its rows have no outcome, by which answers could be compared")
    return float(told["outcome"])
