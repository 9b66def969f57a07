"""RolloutJournal: finished rollouts, durable at once, so that no attempt samples them again.

    keep(rollout) ──▶ one note for all that finished meanwhile ──▶ the stage's notes
    a later attempt ── finished(step) ──▶ rollouts by id; what is missing is sampled again

A rollout is a function of its seeds and weights, so one read back is the one that would be sampled
again. The notes of a step are also its data on disk: with the checkpoint before it, the step can be
repeated without an engine. A step is one of RL's, or one model's turn in `distill` and `evaluate`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from engines.rollout.records.json_text import dump_turns, load_turns
from engines.rollout.records.packed import pack_samples, unpack_samples
from engines.types import Message, Sample, Status
from engines.weight_versions import NO_VERSION


class Notes(Protocol):
    """Where a stage keeps pieces of a step's work (`tasks.stage.Checkpoints`)."""

    def note(self, step: int, data: bytes) -> None: ...

    def notes(self, step: int) -> list[bytes]: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that is over: its judged samples, and the turns after the problem's messages."""

    samples: tuple[Sample, ...]
    turns: tuple[Message, ...]
    prompt: int
    """checksum of the problem's prompt, by which one with another prompt is told apart"""

    @property
    def oldest_version(self) -> int:
        """-1 where no token was sampled."""
        sampled = frozenset[int]().union(*(s.weight_versions.sampled for s in self.samples))
        return min(sampled, default=NO_VERSION)


def prompt_checksum(prompt_ids: Sequence[int]) -> int:
    return zlib.crc32(np.array(prompt_ids, np.int32).tobytes())


class RolloutJournal:
    """Use it in one event loop; writing happens in a thread, one note at a time.

    A note takes up what finished in `every_s` seconds: many small writes cost a sweep more than a
    kill may.
    """

    def __init__(self, notes: Notes, every_s: float = 0.0) -> None:
        self._notes = notes
        self._every_s = every_s
        self._waiting: list[Finished] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._hurry = asyncio.Event()

    async def finished(self, step: int, version: int) -> dict[str, Finished]:
        """Rollouts of the step that an earlier attempt finished under weights `version`, by id."""
        pieces = await asyncio.to_thread(self._notes.notes, step)
        found = [rollout for piece in pieces for rollout in _read(piece)]
        usable = (NO_VERSION, version)
        return {f.samples[0].rollout_id: f for f in found if f.oldest_version in usable}

    def keep(self, step: int, rollout: Finished) -> None:
        """Write it soon: with the others that finish until the writer is free."""
        if rollout.samples[0].status in (Status.ABORTED, Status.FAILED):
            return  # it starts again from its seed; why it failed may be over by then
        self._waiting.append(rollout)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(step))

    async def flush(self) -> None:
        """All that was kept is durable, or the store's error is raised."""
        if self._writing is not None:
            self._hurry.set()
            await self._writing
        if self._failure is not None:
            raise self._failure

    async def _write(self, step: int) -> None:
        try:
            while self._waiting:
                await self._gather()
                taken, self._waiting = self._waiting, []
                await asyncio.to_thread(self._note, step, taken)
        except Exception as error:  # nobody may await this task: the next flush says it
            self._failure = error
        finally:
            self._writing = None
            self._hurry.clear()

    async def _gather(self) -> None:
        """Let more rollouts finish first, unless someone waits for the note."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._every_s)

    def _note(self, step: int, finished: Sequence[Finished]) -> None:
        beside = [[len(f.samples), dump_turns(f.turns), f.prompt] for f in finished]
        self._notes.note(step, pack_samples([s for f in finished for s in f.samples], beside))


def _read(piece: bytes) -> list[Finished]:
    """Rollouts of a note; none if a crash of the machine left it empty or incomplete."""
    try:
        samples, beside = unpack_samples(piece)
    except ValueError:
        return []
    rest = iter(samples)
    return [
        Finished(tuple(islice(rest, count)), load_turns(turns), prompt)
        for count, turns, prompt in beside
    ]
