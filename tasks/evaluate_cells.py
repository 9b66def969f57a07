"""The cells of an evaluation: one model on one domain, sampled or greedy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from engines.rollout.episode import Roller, Rollout
from engines.rollout.gallery import Gallery
from engines.rollout.metrics import mean, most_frequent_reason, outcome, share
from engines.rollout.seams import LiveDomain
from engines.rollout.sweep import Kept, sweep
from engines.types import Problem, Status
from tasks.evaluate import EvaluateSpec

_SHOWN = 4
"""problems of a cell whose first rollout is kept for browsing"""
NOTHINK = "-nothink"


@dataclass(frozen=True, slots=True)
class Cell:
    """What to sample."""

    model: str
    domain: LiveDomain
    problems: Sequence[Problem]
    samples: int
    kind: Literal["score", "greedy"]

    @property
    def temperature(self) -> float:
        return 0.0 if self.kind == "greedy" else 1.0


@dataclass(frozen=True, slots=True)
class CellResult:
    """What came out. `score` is the mean outcome, 0 to 1; a failed rollout counts as 0."""

    model: str
    domain: str
    kind: Literal["score", "greedy"]
    score: float
    stderr: float
    """standard error of the score, over problems"""
    rollouts: int
    tokens: int
    """generated"""
    truncated_share: float
    malformed_share: float
    failed_share: float
    failure: str
    """most frequent reason of failed rollouts"""


def cells_of(spec: EvaluateSpec, model: str, domains: Sequence[LiveDomain]) -> list[Cell]:
    """Every cell of a model: at home in full and greedily, elsewhere with fewer samples."""
    settings = spec.settings
    cells: list[Cell] = []
    for domain in domains:
        home = domain.name in spec.home.get(model, [])
        samples = settings.samples if home else settings.samples_elsewhere
        problems = domain.curriculum.problems("heldout", settings.problems, spec.seed)
        cells.append(Cell(model, domain, problems, samples, "score"))
        if home:
            cells.append(Cell(model, domain, problems, 1, "greedy"))
    return cells + (_without_thinking(cells) if model in spec.nothink else [])


def _without_thinking(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with thinking off; those that never think are left out, see `mirrored`."""
    return [
        replace(
            cell,
            model=cell.model + NOTHINK,
            problems=[replace(p, thinking=False) for p in cell.problems],
        )
        for cell in cells
        if any(p.thinking for p in cell.problems)
    ]


def mirrored(results: Sequence[CellResult], nothink: Sequence[str]) -> list[CellResult]:
    """The results, with those of domains that never think repeated for each NAME-nothink.

    Their prompts and seeds are the same in both modes, and so are their rollouts.
    """
    known = {(r.model, r.domain) for r in results}
    copies = [replace(r, model=r.model + NOTHINK, tokens=0) for r in results if r.model in nothink]
    return [*results, *[c for c in copies if (c.model, c.domain) not in known]]


def renamed(results: Sequence[CellResult], original: str, name: str) -> list[CellResult]:
    """The original's results as those of another name for the same weights; no token is new."""
    names = {original: name, original + NOTHINK: name + NOTHINK}
    return [replace(r, model=names[r.model], tokens=0) for r in results if r.model in names]


async def roll_cells(
    roller: Roller, cells: Sequence[Cell], kept: Kept, gallery: Gallery
) -> list[CellResult]:
    """All cells of one model at once, so that the servers are never idle. Raises EngineError.

    What `kept` knows is not sampled again, and what is sampled is durable there.
    """
    rolled = await asyncio.gather(
        *[
            sweep(
                roller,
                cell.domain,
                cell.problems,
                samples=cell.samples,
                temperature=cell.temperature,
                kept=kept,
                label=f"{cell.model} {cell.kind}",
            )
            for cell in cells
        ]
    )
    await kept.journal.flush()
    for cell, groups in zip(cells, rolled, strict=True):
        for group in groups[:_SHOWN]:
            gallery.add(f"{cell.model} {cell.kind}", group[0].sample)
    return [_result(cell, groups) for cell, groups in zip(cells, rolled, strict=True)]


def scores_of(results: Sequence[CellResult]) -> dict[str, Any]:
    """The content of `scores.json`: scores, greedy and stderr by model and domain, and cells."""
    tables: dict[str, Any] = {"scores": {}, "greedy": {}, "stderr": {}}
    for result in results:
        table = "scores" if result.kind == "score" else "greedy"
        tables[table].setdefault(result.model, {})[result.domain] = result.score
        if result.kind == "score":
            tables["stderr"].setdefault(result.model, {})[result.domain] = result.stderr
    return {**tables, "cells": [asdict(r) for r in results]}


def _result(cell: Cell, groups: Sequence[Sequence[Rollout]]) -> CellResult:
    samples = [r.sample for group in groups for r in group]
    means = [mean(outcome(r.sample) for r in group) for group in groups]
    return CellResult(
        model=cell.model,
        domain=cell.domain.name,
        kind=cell.kind,
        score=mean(means),
        stderr=standard_error(means),
        rollouts=len(samples),
        tokens=sum(s.num_trained_tokens for s in samples),
        truncated_share=share(samples, Status.TRUNCATED),
        malformed_share=share(samples, Status.MALFORMED),
        failed_share=share(samples, Status.FAILED),
        failure=most_frequent_reason(samples),
    )


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    variance = sum((v - centre) ** 2 for v in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))
