"""Answers of a `distill` stage become rows of preferences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from curricula.rows.pairs import PairColumns, read_judged
from engines.rollout.records.dataset import DATA_FILE, DistilledRow, write_dataset
from engines.types import Message, Problem, Tool, ToolCall
from infra.errors import InputError
from tasks.preference.made_pairs import write_pairs

pytestmark = pytest.mark.unit

LOOK = Tool("look", "Looks.", {"at": "string"}, ("at",))


def answer(problem: Problem, outcome: float, *turns: Message) -> DistilledRow:
    return DistilledRow([1, 2], [0, 1], problem, turns, "m", "9f", 0, 0, {"outcome": outcome})


def said(text: str) -> Message:
    return Message("assistant", text)


def test_the_best_and_the_worst_answer_of_each_problem_are_a_row(tmp_path: Path) -> None:
    one, two, three = (
        Problem(f"p/{n}", "d", (Message("system", "s"), Message("user", f"{n}?")), tools=tools)
        for n, tools in enumerate(((), (LOOK,), ()))
    )
    called = Message("assistant", "", tool_calls=(ToolCall("look", {"at": "sea"}),))
    told = (called, Message("tool", "blue"), Message("assistant", "blue", "so it is"))
    rows = [
        answer(one, 0.5, said("b")), answer(two, 0.0, said("red")), answer(one, 0.25, said("c")),
        answer(three, 1.0, said("x")), answer(one, 1.0, said("a")), answer(two, 0.75, *told),
        answer(three, 1.0, said("y")), answer(one, 0.25, said("d")),
    ]  # fmt: skip
    write_dataset(tmp_path / DATA_FILE, rows)
    write_pairs(tmp_path, tmp_path / "pairs.jsonl")
    lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
    first, second = (read_judged(json.loads(line), PairColumns(), "auto") for line in lines)
    assert [each.messages for each in first.answers] == [
        (*one.messages, said("a")), (*one.messages, said("c")),
    ]  # fmt: skip
    assert (first.worth, first.pairs) == ((1.0, 0.25), ((0, 1, 0.75),))
    assert second.answers[0].messages == (*two.messages, *told)
    assert second.answers[0].tools == second.answers[1].tools
    assert [(tool.name, tool.required) for tool in second.answers[0].tools] == [("look", ("at",))]
    assert not first.unread
    assert not second.unread


def test_answers_that_are_equally_good_teach_no_preference(tmp_path: Path) -> None:
    problem = Problem("p/0", "d", (Message("user", "?"),))
    write_dataset(tmp_path / DATA_FILE, [answer(problem, 1.0, said(text)) for text in "ab"])
    with pytest.raises(InputError, match="`samples: 2` or more, and `min_outcome: 0`"):
        write_pairs(tmp_path, tmp_path / "pairs.jsonl")
