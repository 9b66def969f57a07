"""What models got for each problem, from the content of an evaluation's `scores.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.evaluate.statistics import problem_means

ProblemOutcomes = Mapping[tuple[str, str], list[float | None]]
"""by model and domain: mean outcome of each problem, 0 to 1, in the problems' order; None: no
verdict"""


def problem_samples(
    scores: Mapping[str, Any],
) -> Mapping[tuple[str, str], list[list[float | None]]]:
    """By model and domain: the outcomes of each problem's samples at temperature 1."""
    return {
        (cell["model"], cell["domain"]): cell["outcomes"]
        for cell in scores.get("cells", [])
        if cell["kind"] == "score"
    }


def problem_outcomes(scores: Mapping[str, Any]) -> ProblemOutcomes:
    """Of what was sampled at temperature 1."""
    return {cell: problem_means(rows) for cell, rows in problem_samples(scores).items()}
