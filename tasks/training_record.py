"""Metrics of a training by step, for the report's curves: few points however long the stage was;
and whether its optimizer steps trained anything: counted, and said at the end.

Written into the artifact as `training/series.json`: {"loss": [[1, 2.5], [2, 2.25]]}. Holds no
times: an artifact is the same to the bit in every run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning
from tasks.stage import Reporter

if TYPE_CHECKING:
    from numpy import uint8
    from numpy.typing import NDArray


SERIES_FILE = "training/series.json"
"""of an artifact"""
FEWEST_POINTS = 400
"""of a metric, at least, in a long stage; at most twice as many"""

Point = TypeVar("Point")
Points: TypeAlias = "list[tuple[int, float]]"
"""step and value, in the order of steps"""
_MOVED = 1e-6
"""of what the weights of a tensor are, below which one of 32 bits counts as unchanged: Adam moves
some that are almost 0 even at a rate of 1e-12"""
_ROWS = 16
"""of each tensor, which are compared"""


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
        """Return the points of a metric that are kept."""
        return list(self._points.get(name, ()))

    def last(self, name: str, count: int) -> list[float]:
        """The newest values of a metric, at most so many."""
        return [value for _, value in self._points.get(name, [])[-count:]]

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes."""
        return {name: list(points) for name, points in self._points.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._points = _points(state)

    def write(self, folder: Path) -> None:
        """Into an artifact's folder."""
        path = folder / SERIES_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.state()))


def thinned(points: list[Point]) -> list[Point]:
    """Keep every second one, with the first and the last, where there are too many to keep."""
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


_FEW = 0.001
"""share of changed weights below which the model is said to be almost the one before"""


class Updates:
    """Counts over a stage's steps; saved with its checkpoints."""

    def __init__(self) -> None:
        self.made = 0
        self.skipped = 0
        """steps that were to update a model and did not"""
        self.idle = 0
        """of those, the ones since the last update"""
        self._without_gradient = 0
        """of those made, the ones whose gradient was exactly 0"""

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take the trainer's metrics of one step in; empty where it was skipped."""
        if not metrics:
            self.skipped += 1
            self.idle += 1
            return
        self.made += 1
        self.idle = 0
        self._without_gradient += metrics.get("grad_norm", 1.0) == 0.0

    def require_gradient(self, why: str) -> None:
        """Raises TrainingStopped where every update's gradient was 0; `why` says what causes it."""
        if self.made and self._without_gradient == self.made:
            raise TrainingStopped(
                f"nothing was trained: the gradient was exactly 0 in each of {self.made} updates."
                f" {why}"
            )

    def warnings(self) -> Iterator[StageWarning]:
        """Warn of updates without a gradient, where they are more than half."""
        if 2 * self._without_gradient > self.made:
            yield StageWarning(
                what=f"{self._without_gradient} of {self.made} updates had a gradient of exactly 0",
                cause="what these steps trained on holds nothing to learn",
                advice="look at the curves of `grad_norm` and of the loss",
                figures={"updates": self.made, "without_gradient": self._without_gradient},
            )

    def require_change(self, share: float, reporter: Reporter) -> None:
        """Keep a warning where the stage changed almost no weight; `share` is `changed_share`.
        Raises TrainingStopped where it changed none."""
        too_small = "the learning rate is less than numbers of the model's type tell apart"
        if self.made and not share:
            raise TrainingStopped(
                f"nothing was trained: after {self.made} updates no weight differs from the one"
                f" that the stage began with by a millionth, as {too_small}, or 0. Raise"
                " `optimizer.lr`, or, where it decays to 0 or warms up from it,"
                " `optimizer.min_lr_ratio` or `steps`"
            )
        if self.made and share < _FEW:
            reporter.keep_warning(
                StageWarning(
                    what=f"only {share:.2g} of the model's weights changed in {self.made} updates",
                    cause=too_small,
                    advice="raise `optimizer.lr`, or train for more steps",
                    figures={"updates": self.made, "changed_share": share},
                )
            )

    def state(self) -> dict[str, int]:
        """Return what `restore` takes."""
        return {"made": self.made, "skipped": self.skipped, "zero": self._without_gradient}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.made, self.skipped = state["made"], state["skipped"]
        self._without_gradient = state["zero"]


async def changed_share(before: Path, after: Path) -> float:
    """Share of the weights of two folders of one model that differ, by some rows of each tensor
    as they are stored."""
    return await asyncio.to_thread(_changed_share, before, after)


def _changed_share(before: Path, after: Path) -> float:
    # Bytes are compared: importing torch would take longer than all the rest.
    first, second = dict(_first_rows(before)), dict(_first_rows(after))
    changed = total = 0
    for name in sorted(first.keys() & second.keys()):
        changed += _num_changed(first[name], second[name])
        total += len(first[name])
    return changed / total if total else 1.0


def _num_changed(first: NDArray[uint8], second: NDArray[uint8]) -> int:
    """Return how many elements of a tensor differ, given the bytes of each."""
    import numpy as np

    differ = (first != second).any(axis=1)
    if first.shape[1] == 4 and differ.any():
        before, after = first.view("<f4")[:, 0], second.view("<f4")[:, 0]
        size = np.sqrt(np.mean(np.square(before, dtype=np.float64)))
        differ &= ~(np.abs(after - before) <= _MOVED * size)
    return int(differ.sum())


def _first_rows(folder: Path) -> Iterator[tuple[str, NDArray[uint8]]]:
    """The bytes of these rows of each tensor, a line for each element."""
    import numpy as np

    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                (start, end), size = entry["data_offsets"], entry["shape"]
                width = (end - start) // prod(size) if end > start else 1
                rows = (min(_ROWS, size[0]), *size[1:]) if size else ()
                file.seek(8 + length + start)
                stored = file.read(prod(rows) * width)
                yield name, np.frombuffer(stored, np.uint8).reshape(-1, width)
