"""What an evaluation's cells come to: the tables of `scores.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tasks.evaluate.cells import CellResult
from tasks.evaluate.score_statistics import (
    Lines,
    Scaling,
    ScalingPoint,
    by_samples,
    by_turns,
    interval,
    mean,
    powers_of_two,
)


def scores_of(results: Sequence[CellResult]) -> dict[str, Any]:
    """The content of `scores.json`: tables by model and domain, and every cell in full.

    `scores` at temperature 1, `greedy`, `best_of` (by k) and 95% `intervals` of each of them;
    `scaling` with samples and with turns; `sampled`: by further setting, its own such tables.
    """
    tables = _tables([r for r in results if r.kind == "score"])
    greedy = {(r.model, r.domain): r for r in results if r.kind == "greedy" and r.has_verdict}
    means = {key: r.problem_means for key, r in greedy.items()}
    intervals = tables.pop("intervals")
    settings = settings_of(results)
    sampled = {name: _tables([r for r in results if r.kind == name]) for name in settings}
    return {
        "scores": tables.pop("scores"),
        "greedy": _table({key: r.score for key, r in greedy.items()}),
        **tables,
        "intervals": {"scores": intervals["scores"], "greedy": _intervals(means)} | intervals,
        "scaling": scaling_of(results).model_dump(),
        **({"sampled": sampled} if sampled else {}),
        "cells": [asdict(r) for r in results],
    }


def settings_of(results: Sequence[CellResult]) -> list[str]:
    """Names of the ways to sample beside temperature 1 and greedy."""
    return list(dict.fromkeys(r.kind for r in results if r.kind not in ("score", "greedy")))


def _tables(sampled: Sequence[CellResult]) -> dict[str, Any]:
    """Of results that were sampled alike."""
    judged = {(r.model, r.domain): r for r in sampled if r.has_verdict}
    best = {
        str(k): {(r.model, r.domain): r.best_of(k) for r in sampled if r.most_samples >= k}
        for k in powers_of_two(max((r.most_samples for r in sampled), default=0))
    }
    return {
        "scores": _table({key: r.score for key, r in judged.items()}),
        "no_verdict": _table(
            {(r.model, r.domain): r.failure for r in sampled if not r.has_verdict}
        ),
        "stderr": _table({key: r.stderr for key, r in judged.items()}),
        "best_of": {k: _means(cells) for k, cells in best.items()},
        "intervals": {"scores": _intervals({key: r.problem_means for key, r in judged.items()})}
        | {f"best_of_{k}": _intervals(cells) for k, cells in best.items()},
    }


def scaling_of(results: Sequence[CellResult], kind: str = "score") -> Scaling:
    """Of the cells that were sampled so; `score` is at temperature 1."""
    sampled = [r for r in results if r.kind == kind]
    samples = {(r.model, r.domain): by_samples(r.outcomes) for r in sampled}
    turns = {(r.model, r.domain): by_turns(r.outcomes, r.turns, r.most_turns) for r in sampled}
    return Scaling(samples=_lines(samples), turns=_lines(turns))


def scaling_metrics(results: Sequence[CellResult]) -> dict[int, dict[str, float]]:
    """By budget; those of a further setting begin with its name."""
    found = scaling_of(results).metrics()
    for name in settings_of(results):
        for budget, scores in scaling_of(results, name).metrics().items():
            at = found.setdefault(budget, {})
            at |= {f"{name}/{metric}": score for metric, score in scores.items()}
    return dict(sorted(found.items()))


def _lines(curves: Mapping[tuple[str, str], list[ScalingPoint]]) -> Lines:
    return _table({key: points for key, points in curves.items() if points})


def _means(cells: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, dict[str, Any]]:
    return _table({key: mean(values) for key, values in cells.items()})


def _intervals(cells: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, dict[str, Any]]:
    return _table({key: interval(values) for key, values in cells.items()})


def _table(cells: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    """model -> domain -> value"""
    table: dict[str, dict[str, Any]] = {}
    for (model, domain), value in cells.items():
        table.setdefault(model, {})[domain] = value
    return table
