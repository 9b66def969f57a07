"""The steps that a metric has, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterable


class KnownSteps:
    """Kept as runs of steps that are equally far apart: a metric of every step, or of every tenth,
    is one run, however long it is."""

    def __init__(self, steps: Iterable[int] = ()) -> None:
        self._runs: list[range] = []
        self._highest = 0
        for step in sorted(set(steps)):
            self.add(step)

    def __contains__(self, step: int) -> bool:
        """At once for a step above all others, which almost every new one is."""
        if not self._runs or step > self._highest:
            return False
        return any(step in run for run in reversed(self._runs))

    def add(self, step: int) -> None:
        """Take in a step that is not there."""
        self._highest = max(step, self._highest) if self._runs else step
        last = self._runs[-1] if self._runs else range(0)
        if len(last) == 1 and step > last[0]:
            self._runs[-1] = range(last[0], step + 1, step - last[0])
        elif len(last) > 1 and step == last[-1] + last.step:
            self._runs[-1] = range(last[0], step + 1, last.step)
        else:
            self._runs.append(range(step, step + 1))
