"""What lm-eval found, as scores with 95% intervals. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks.evaluate.score_statistics import Z95, interval, mean

_ANY_FILTER = "none"
"""what lm-eval calls the answer as it is"""
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One metric of one task, or of a group of tasks.

    Example: TaskScore("arc_easy", "acc", 0.71, 0.69, 0.73, 2376, [1.0, 0.0, ...])
    """

    task: str
    metric: str
    """with the filter that took the answer from the text, e.g. `exact_match strict-match`"""
    value: float
    low: float | None
    high: float | None
    """95% interval over documents; None where neither we nor lm-eval can tell"""
    documents: int
    """0: a group, of whose tasks the score is made"""
    outcomes: Sequence[float] = field(default_factory=list[float])
    """of each document, where the score is their mean"""
    less_is_better: bool = False

    @property
    def name(self) -> str:
        return f"{self.task} {self.metric}"


def scores_of(found: Mapping[str, Any]) -> list[TaskScore]:
    """Every metric of every task of `harness.evaluated`, in its order."""
    scores: list[TaskScore] = []
    for task, row in found["results"].items():
        samples = found["samples"].get(task, [])
        of_documents = _by_metric(samples)
        documents = len({sample["document"] for sample in samples})
        directions = found.get("higher_is_better", {}).get(task, {})
        for key, value in row.items():
            metric, _, taken_by = key.partition(",")
            if metric.endswith("_stderr"):
                continue
            values = of_documents.get((metric, taken_by), [])
            is_mean = bool(values) and abs(mean(values) - value) < _CLOSE
            error = row.get(f"{metric}_stderr,{taken_by}")
            low, high = _bounds(value, values if is_mean else [], error)
            shown = metric if taken_by == _ANY_FILTER else f"{metric} {taken_by}"
            scores.append(
                TaskScore(
                    task, shown, value, low, high, documents, values if is_mean else [],
                    less_is_better=directions.get(metric) is False,
                )
            )  # fmt: skip
    return scores


def _by_metric(samples: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """Values of the documents, in their order, by metric and filter."""
    values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample["document"]):
        for metric, value in sample["metrics"].items():
            values[metric, sample["filter"]].append(value)
    return values


def _bounds(
    value: float, values: Sequence[float], error: float | None
) -> tuple[float | None, float | None]:
    """As our own scores have them where a document's value is between 0 and 1; else of the standard
    error that lm-eval gives, which is a bootstrap's for metrics that are no mean."""
    if values and all(0 <= each <= 1 for each in values):
        low, high = interval(values)
        return min(low, value), max(high, value)  # rounding may leave 0 outside
    if error is None or error != error:
        return None, None
    return value - Z95 * error, value + Z95 * error


def scores_file(scores: Mapping[str, Sequence[TaskScore]]) -> dict[str, Any]:
    """The content of `task_scores.json`: by model, tables by task and metric, and all in full."""
    return {
        "scores": {model: {s.name: s.value for s in of} for model, of in scores.items()},
        "intervals": {
            model: {s.name: (s.low, s.high) for s in of if s.low is not None}
            for model, of in scores.items()
        },
        "cells": [{"model": model, **asdict(s)} for model, of in scores.items() for s in of],
    }
