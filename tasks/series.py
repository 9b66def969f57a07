"""Metrics of a training by step, for the report's curves: few points however long the stage was.

Written into the artifact as `training/series.json`: {"loss": [[1, 2.5], [2, 2.25]]}. Holds no
times: an artifact is the same to the bit in every run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

SERIES_FILE = "training/series.json"
"""of an artifact"""
FEWEST_POINTS = 400
"""of a metric, at least, in a long stage; at most twice as many"""

Point = TypeVar("Point")
Points: TypeAlias = "list[tuple[int, float]]"
"""step and value, in the order of steps"""


class Series:
    """Collects some of a stage's metrics; saved with its checkpoints."""

    def __init__(self, names: Collection[str]) -> None:
        """The metrics to keep; they must not depend on the clock."""
        self._names = names
        self._points: dict[str, Points] = {}

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        # A point stays or goes by its step alone, so a resumed stage keeps the same ones.
        every = _stride(step)
        if step % every:
            return
        for name in self._names:
            if name in metrics:
                points = self._points.setdefault(name, [])
                points.append((step, metrics[name]))
                if len(points) > 2 * FEWEST_POINTS:
                    self._points[name] = [p for p in points if p[0] % every == 0]

    def points(self, name: str) -> Points:
        """Those of a metric that are kept."""
        return list(self._points.get(name, ()))

    def last(self, name: str, count: int) -> list[float]:
        """The newest values of a metric, at most so many."""
        return [value for _, value in self._points.get(name, [])[-count:]]

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {name: list(points) for name, points in self._points.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._points = _points(state)

    def write(self, folder: Path) -> None:
        """Into an artifact's folder."""
        path = folder / SERIES_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.state()))


def thinned(points: list[Point]) -> list[Point]:
    """Every second one, with the first and the last, where there are too many to keep."""
    return [*points[:-1:2], points[-1]] if len(points) > 2 * FEWEST_POINTS else points


def read_series(data: bytes) -> dict[str, Points]:
    """The content of a `series.json`."""
    return _points(json.loads(data))


def _points(content: Mapping[str, Any]) -> dict[str, Points]:
    return {
        name: [(int(step), float(value)) for step, value in points]
        for name, points in content.items()
    }


def _stride(step: int) -> int:
    """The power of two of which steps up to this one are multiples, if they are to be few."""
    every = 1
    while step > 2 * FEWEST_POINTS * every:
        every *= 2
    return every
