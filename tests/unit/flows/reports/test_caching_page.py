"""The page on caching shows every setting as the specs have it."""

from __future__ import annotations

import pytest

from tests.parts.settings_table import PAGE, into_page, table

pytestmark = pytest.mark.unit


def test_the_page_holds_the_table_that_the_specs_give() -> None:
    text = PAGE.read_text()
    assert text == into_page(text), "run `python -m tests.parts.settings_table`"


def test_the_table_says_what_reads_what() -> None:
    rows = {
        kind: row.split("|")[2:-1]
        for row in table().splitlines()
        for kind in row.split("|")[1].replace("`", "").strip().split(", ")
    }
    reads, nothing = zip(*rows.values(), strict=True)
    of_domain = dict(zip(rows, reads, strict=True))
    for kind in ("offline", "replay", "lm_eval", "served"):
        assert not of_domain[kind].strip(), "it draws no problems"
    assert "`rewards`" in of_domain["rl"]
    assert "`rewards`" not in of_domain["sft"] + of_domain["evaluate"]
    again = dict(zip(rows, nothing, strict=True))
    assert "`checkpoint_every`" in again["sft"]
    assert "*trainer*" in again["rl"]
    assert "trainer.precision" not in again["opd"]
