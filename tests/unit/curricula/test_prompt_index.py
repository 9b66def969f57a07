"""The rows that a machine keeps: made once, removed when unused, made again when torn."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from curricula.prompt_files.prompt_curriculum import Files
from engines.draws import draw_problems
from infra.home import home

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]


def write(file: Path, count: int) -> str:
    rows = [{"question": f"What is {n} plus 1?", "answer": n + 1} for n in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_an_unused_folder_is_removed_and_a_draft_that_goes_away_is_no_fault(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", 4)
    Files(sources={"files": [file]}).num_rows("rl")
    (kept,) = (home() / "cache/prompts").iterdir()
    os.utime(kept, (0, 0))
    (kept.parent / ".gone").symlink_to(tmp_path / "gone")  # looked at, it is missing
    write(tmp_path / "a.jsonl", 5)
    assert Files(sources={"files": [file]}).counts[0].read == 5
    assert not kept.exists()


def test_a_folder_of_which_a_part_was_removed_is_made_again(tmp_path: Path):
    file = write(tmp_path / "a.jsonl", 4)
    Files(sources={"files": [file]}).num_rows("rl")
    (kept,) = (home() / "cache/prompts").iterdir()
    for name in ("counts.json", "rows.jsonl"):
        (kept / name).unlink()
        assert Files(sources={"files": [file]}).counts[0].read == 4
        assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_a_reference_of_many_digits_is_kept_digit_by_digit(tmp_path: Path):
    answer, file = 2**100, tmp_path / "a.jsonl"
    rows = [
        {"question": "2^100?", "answer": answer},
        {"question": "?", "answer": {"sum": [answer]}},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = Files(sources={"files": [str(file)], "split": "train"}, shares={"heldout": 0})
    found = [problem.reference for problem in draw_problems(made, "rl", 2, seed=0)]
    assert {"answer": str(answer)} in found
    assert {"sum": [str(answer)]} in found
