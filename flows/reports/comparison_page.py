"""The comparison of runs as a page of the report's style."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.reports.comparison import Comparison
from flows.reports.rendering import render
from flows.reports.report import Report
from flows.running.records import RunRecord
from infra.home import home

_MOST_LETTERS = 120
"""of a file's name"""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A line of the page's first table."""

    run: str
    recipe: str
    seed: int
    state: str
    seconds: float
    has_page: bool
    """its own page is in the same folder"""


def write_comparison(
    found: Comparison, records: Sequence[RunRecord], reports: Sequence[Report]
) -> Path:
    """Write the page to the home; returns its path, the same for the same runs."""
    folder = home() / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_name(found.runs)}.html"
    draft = path.with_suffix(".draft")
    draft.write_text(comparison_page(found, _runs(records, reports, folder)), errors="replace")
    draft.replace(path)
    return path


def comparison_page(found: Comparison, runs: Sequence[ComparedRun]) -> str:
    """The whole page as HTML."""
    averaged = {"sampled at temperature 1": found.scores, "greedy": found.greedy} | {
        f"pass@{k}": spreads for k, spreads in found.best_of.items()
    }
    averaged["lm-eval"] = found.tasks
    return render(
        "compare.html",
        found=found,
        runs=runs,
        averaged={title: table for title, table in averaged.items() if table},
    )


def _runs(
    records: Sequence[RunRecord], reports: Sequence[Report], folder: Path
) -> list[ComparedRun]:
    recipes = [record.recipe() for record in records]
    return [
        ComparedRun(
            report.run, recipe.name, recipe.seed, report.state, report.seconds,
            (folder / f"{report.run}.html").is_file(),
        )
        for recipe, report in zip(recipes, reports, strict=True)
    ]  # fmt: skip


def _name(runs: Sequence[str]) -> str:
    """Readable for two runs, and never too long for a file system."""
    whole = "-and-".join(runs)
    if len(whole) > _MOST_LETTERS:
        whole = f"{len(runs)}-runs-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
    return f"compare-{whole}"
