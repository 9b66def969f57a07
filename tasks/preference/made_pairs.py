"""Turns the answers of a `distill` stage into preferences: to each problem its best and its worst
answer, by their outcomes, in the layout of a person's own rows.

Where all answers to a problem are equally good there is nothing to prefer, and no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.chat.template import tool_row
from engines.rollout.records.dataset import DATA_FILE, DistilledRow, ParquetRows, row_of
from engines.types import Message
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


def write_pairs(dataset: Path, to: Path) -> None:
    """Write a row for each problem of a `distill` artifact. Raises InputError where there is
    none."""
    count = 0
    with to.open("w") as file:
        for row in made_pairs(ParquetRows(dataset / DATA_FILE)):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    if not count:
        raise InputError(
            "data: the answers of the `distill` before it are equally good, to each problem; give"
            " that stage `samples: 2` or more, and `min_outcome: 0`, so that it keeps worse answers"
        )


def made_pairs(rows: ParquetRows) -> Iterator[dict[str, Any]]:
    """In the order of the problems' first answers."""
    ends: dict[str, _Ends] = {}
    for number, known in enumerate(rows.columns(("problem", "rewards"))):
        problem, outcome = json.loads(known["problem"])["id"], _outcome(known["rewards"])
        if problem in ends:
            ends[problem].take(number, outcome)
        else:
            ends[problem] = _Ends(number, outcome, number, outcome)
    for each in ends.values():
        if each.best_outcome > each.worst_outcome:
            best, worst = (row_of(rows.row(number)) for number in (each.best, each.worst))
            yield _pair(best, worst)


def _outcome(rewards: str) -> float:
    return float(json.loads(rewards)["outcome"])


def _pair(better: DistilledRow, worse: DistilledRow) -> dict[str, Any]:
    problem = better.problem
    tools = {"tools": [tool_row(tool) for tool in problem.tools]} if problem.tools else {}
    return {
        "prompt": [message_row(message) for message in problem.messages],
        "chosen": [message_row(message) for message in better.turns],
        "rejected": [message_row(message) for message in worse.turns],
        "score_chosen": better.rewards["outcome"],
        "score_rejected": worse.rewards["outcome"],
        **tools,
    }


def message_row(message: Message) -> dict[str, Any]:
    """A message as rows of data have it, as OpenAI's API does."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return row
