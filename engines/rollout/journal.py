"""RolloutJournal: finished rollouts, durable at once, so that no attempt samples them again.

    Producer ── keep(sample) ──▶ one note for all that finished meanwhile ──▶ the stage's notes
    a later attempt ── finished(step) ──▶ samples by rollout id; what is missing is sampled anew

A rollout is a function of its seeds and weights, so one read back is the one that would be sampled
again. The notes of a step are also its data on disk: with the checkpoint before it, the step can be
repeated without an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

import orjson

from engines.types import Sample, Status


class Notes(Protocol):
    """Where a stage keeps pieces of a step's work (`tasks.stage.Checkpoints`)."""

    def note(self, step: int, data: bytes) -> None: ...

    def notes(self, step: int) -> list[bytes]: ...


class RolloutJournal:
    """Use it in one event loop; writing happens in a thread, one note at a time."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._waiting: list[Sample] = []
        self._writing: asyncio.Task[None] | None = None

    async def finished(self, step: int) -> dict[str, Sample]:
        """Rollouts of the step that an earlier attempt finished, by rollout id."""
        pieces = await asyncio.to_thread(self._notes.notes, step)
        samples = [sample for piece in pieces for sample in _read(piece)]
        return {s.rollout_id: s for s in samples}

    def keep(self, step: int, sample: Sample) -> None:
        """Write it soon: with the others that finish until the writer is free."""
        if sample.status is Status.ABORTED:
            return  # unfinished: it starts again from its seed
        self._waiting.append(sample)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(step))

    async def flush(self) -> None:
        """All that was kept is durable, or the store's error is raised."""
        if self._writing is not None:
            await self._writing

    async def _write(self, step: int) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                await asyncio.to_thread(self._note, step, taken)
        finally:
            self._writing = None

    def _note(self, step: int, samples: Sequence[Sample]) -> None:
        self._notes.note(step, orjson.dumps([asdict(s) for s in samples]))


def _read(piece: bytes) -> list[Sample]:
    """Samples of a note; none if a crash of the machine left it empty or torn."""
    try:
        raw: list[dict[str, Any]] = orjson.loads(piece)
    except orjson.JSONDecodeError:
        return []
    for fields in raw:
        fields["status"] = Status(fields["status"])
    return [Sample(**fields) for fields in raw]
