"""What models got for each problem, from the content of an evaluation's `scores.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.evaluate.statistics import mean

ProblemOutcomes = Mapping[tuple[str, str], list[float]]
"""by model and domain: mean outcome of each problem, 0 to 1, in the problems' order"""


def problem_samples(scores: Mapping[str, Any]) -> Mapping[tuple[str, str], list[list[float]]]:
    """By model and domain: the outcomes of each problem's samples at temperature 1."""
    return {
        (cell["model"], cell["domain"]): cell["outcomes"]
        for cell in scores.get("cells", [])
        if cell["kind"] == "score"
    }


def problem_outcomes(scores: Mapping[str, Any]) -> ProblemOutcomes:
    """Of what was sampled at temperature 1."""
    return {
        cell: [mean(samples) for samples in rows] for cell, rows in problem_samples(scores).items()
    }
