"""Rows of the `files` curriculum: which are bad, and which are the same problem."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curricula.prompt_files.curriculum import Files
from engines.types import Problem

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))


def write(file: Path, rows: Sequence[Any]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def every(made: Files) -> list[Problem]:
    return list(made.problems("rl", made.num_rows("rl"), 0))


@pytest.mark.parametrize("columns", [{}, {"reference": "answer"}])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_number_that_is_none_is_no_reference_and_harmless_elsewhere(
    tmp_path: Path, name: str, columns: dict[str, str]
):
    nan = float("nan")
    rows = {
        "question": ["1 and 1?", "2 and 2?"],
        "answer": [2.0, nan],
        "target": [nan, nan],
        "score": [nan, float("inf")],
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.jsonl", pa.table(rows).to_pylist())
    given = {"files": [str(tmp_path / name)], "columns": columns, "max_bad_share": 1}
    made = Files(sources=given, shares={"heldout": 0})
    assert made.counts[0].named == [f"{name}:2: answer: NaN is no JSON"]
    assert {p.messages[0].content: p.reference for p in every(made)} == {
        "1 and 1?": {"answer": 2.0}
    }


def test_prompts_that_differ_in_white_space_are_different_problems(tmp_path: Path):
    prompts = [
        "Sort:\n1 2\n3",
        "Sort:\n1\n2 3",
        "def f():\n    if x:\n        y()\n    z()",
        "def f():\n    if x:\n        y()\n        z()",
        "a  b",
        "a b",
        "a\n\nb",
        "a\nb",
        "a\nassistant: b\nuser: c",
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
    ]
    same = ["Sort:\n1 2  \n3\n", "\na\r\nb\r\n", " a b "]
    rows = [{"prompt": p, "answer": n} for n, p in enumerate([*prompts, *same])]
    made = Files(sources={"files": [write(tmp_path / "a.jsonl", rows)]}, shares={"heldout": 0})
    problems = every(made)
    answers = [p.reference for p in problems]
    assert all({"answer": n} in answers for n in range(len(prompts)))
    assert len({p.id for p in problems}) == len(problems) == len(prompts)
    assert made.counts[0].duplicates == len(same)


def test_a_prompt_may_be_messages_as_json_text_and_a_text_that_looks_like_json(tmp_path: Path):
    said = [{"name": "ann", "role": "user", "content": "a"}]
    texts = ['[{"id": 1, "role": "x"}]: which role?', "[1, 2]", '{"role": "user"}']
    prompts = [json.dumps(said), json.dumps([{"content": "b", "role": "user"}]), *texts]
    rows = [{"prompt": text, "answer": 1} for text in prompts]
    made = Files(sources={"files": [write(tmp_path / "a.jsonl", rows)]}, shares={"heldout": 0})
    assert {p.messages[0].content for p in every(made)} == {"a", "b", *texts}
