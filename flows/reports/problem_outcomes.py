"""What models got for each problem, from the content of an evaluation's `scores.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.evaluate.statistics import mean

ProblemOutcomes = Mapping[tuple[str, str], list[float]]
"""by model and domain: mean outcome of each problem, 0 to 1, in the problems' order"""


def problem_outcomes(scores: Mapping[str, Any]) -> ProblemOutcomes:
    """Of what was sampled at temperature 1."""
    return {
        (cell["model"], cell["domain"]): [mean(samples) for samples in cell["outcomes"]]
        for cell in scores.get("cells", [])
        if cell["kind"] == "score"
    }
