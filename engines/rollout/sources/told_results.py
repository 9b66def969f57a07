"""ToldResults: what a learning data source was told, durable beside the stage's checkpoints.

told ──▶ since the checkpoint before ──▶ a note with the number of results before it
a later attempt ── the notes as they were written, up to the checkpoint's count ──▶ told again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial

import orjson

from engines.rollout.records.notes import Notes
from engines.rollout.sources.data_source import TicketResult
from infra.errors import CorruptArtifact


class ToldResults:
    """Of one stage."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.count = 0
        """all results so far"""
        self._unsaved: list[TicketResult] = []

    def add(self, results: Sequence[TicketResult]) -> None:
        self._unsaved += results
        self.count += len(results)

    def take_unsaved(self) -> Callable[[], None]:
        """-> what notes the results since the checkpoint before, in a thread."""
        results, self._unsaved = self._unsaved, []
        if not results:
            return lambda: None
        return partial(self._write, self.count - len(results), results)

    def read(self, count: int) -> list[TicketResult]:
        """The first `count`, from the notes of earlier attempts; go on after them. Raises
        CorruptArtifact if some are missing."""
        found: list[TicketResult] = []
        # An attempt that continued from an earlier checkpoint wrote over what came after it.
        for note in self._notes.notes("told", 0, count - 1) if count else ():
            first, rows = orjson.loads(note)
            found[first:] = [TicketResult(*row) for row in rows]
        if len(found) < count:
            raise CorruptArtifact(
                f"{len(found)} of {count} results that the data source was told are there: notes of"
                " the stage were deleted. Delete its checkpoints, and run again"
            )
        self.count, self._unsaved = count, []
        return found[:count]

    def _write(self, first: int, results: Sequence[TicketResult]) -> None:
        self._notes.note("told", first, orjson.dumps([first, [astuple(r) for r in results]]))
