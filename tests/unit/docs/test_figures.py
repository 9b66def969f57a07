"""The scores on the pages are those that `make figures` wrote down."""

from __future__ import annotations

import pytest

from tests.programs.figures.table import (
    DOMAINS,
    PAGE,
    README,
    gains,
    read_figures,
    table,
    with_table,
)

pytestmark = pytest.mark.unit


def test_the_pages_have_the_recorded_scores() -> None:
    text = PAGE.read_text()
    assert with_table(text, read_figures()) == text
    assert f"| {gains(read_figures())} |" in README.read_text()


def test_the_table_by_hand() -> None:
    def scores(sft: float, rl: float) -> dict[str, dict[str, float]]:
        experts = {f"{d}-sft": {d: sft} for d in DOMAINS} | {d: {d: rl} for d in DOMAINS}
        return experts | {"unified": dict.fromkeys(DOMAINS, rl)}

    run = {"scores": scores(0.5, 0.75), "greedy": scores(0.25, 0.5), "best_of": {
        "2": scores(0, 0), "4": scores(0.75, 1)}}  # fmt: skip
    lines = table({"A, seed 0": run}).splitlines()
    assert lines[0] == "|  | A, seed 0 |"
    assert lines[2] == "| reasoning: temperature 1 | 0.500 → 0.750 |"
    assert lines[4] == "| best of 4 | 0.750 → 1.000 |"
    assert lines[11] == (
        "| unified model, reasoning / agent / general: temperature 1 | 0.750 / 0.750 / 0.750 |"
    )
    assert len(lines) == 2 + 3 * 4
