"""The page on caching shows every setting as the specs have it."""

from __future__ import annotations

import pytest

from tests.parts.settings_table import PAGE, into_page, table

pytestmark = pytest.mark.unit


def test_the_page_holds_the_table_that_the_specs_give() -> None:
    text = PAGE.read_text()
    assert text == into_page(text), "run `python -m tests.parts.settings_table`"


def test_the_table_says_what_reads_what() -> None:
    rows = {row.split(" | ")[0].strip("| `"): row.split("|")[2:-1] for row in table().splitlines()}
    kinds = [cell.strip() for cell in rows["setting"]]
    said = {name: dict(zip(kinds, map(str.strip, row), strict=True)) for name, row in rows.items()}
    untouched = dict.fromkeys(("offline", "replay", "lm_eval", "served"), "")  # no problems
    assert said["domain.curriculum"] == dict.fromkeys(kinds, "again") | untouched
    assert said["domain.rewards"]["rl"] == "again"
    assert said["domain.rewards"]["sft"] == said["domain.rewards"]["evaluate"] == ""
    assert said["checkpoint_every"]["sft"] == said["trainer.micro_batch_tokens"]["rl"] == "no"
    assert said["trainer.precision"]["opd"] == "again"
