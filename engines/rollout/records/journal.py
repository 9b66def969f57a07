"""RolloutJournal: finished rollouts, durable at once, so that no attempt samples them again.

    keep(rollout) ──▶ one note for all that finished meanwhile ──▶ the stage's notes
    a later attempt ── read(first) ──▶ rollouts by id; what is missing is sampled again

A rollout is a function of its seeds and weights, so one read back is the one that would be sampled
again. The notes are also the stage's data on disk: with a checkpoint and the take log, later steps
can be repeated without an engine. Numbers are tickets in RL, and the model's turn in `distill` and
`evaluate`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np

from engines.rollout.records.json_text import dump_turns, load_turns
from engines.rollout.records.notes import Notes
from engines.rollout.records.packed import pack_samples, unpack_samples
from engines.types import Message, Sample, Status


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that is over: its judged samples, and the turns after the problem's messages."""

    samples: tuple[Sample, ...]
    turns: tuple[Message, ...]
    prompt: int
    """checksum of the problem's prompt, by which one with another prompt is told apart"""

    @property
    def has_failed(self) -> bool:
        """Whether it ended for a reason that may be over at another try."""
        return self.samples[0].status in (Status.ABORTED, Status.FAILED)

    def is_of(self, oldest: int, newest: int) -> bool:
        """Whether weights of these versions alone wrote it."""
        return all(oldest <= v <= newest for s in self.samples for v in s.weight_versions.sampled)


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
        self._waiting: list[tuple[int, Finished]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._hurry = asyncio.Event()
        self._noted = asyncio.Event()
        """set after each note"""
        self._num_kept = self._num_durable = 0
        """rollouts"""

    async def read(self, first: int, last: int | None = None) -> dict[str, Finished]:
        """Rollouts that earlier attempts finished, by id: those whose piece has a number from
        `first` to `last` (None: to the end)."""
        pieces = await asyncio.to_thread(self._notes.notes, "rollouts", first, last)
        found = [rollout for piece in pieces for rollout in _read(piece)]
        return {f.samples[0].rollout_id: f for f in found}

    def keep(self, number: int, rollout: Finished) -> None:
        """Write it soon: with the others that finish until the writer is free, under the highest
        of their numbers."""
        self._num_kept += 1
        self._waiting.append((number, rollout))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def flush(self) -> None:
        """All that was kept so far is durable, or the store's error is raised."""
        wanted = self._num_kept
        while self._writing is not None and self._num_durable < wanted:
            self._hurry.set()
            self._noted.clear()
            await self._noted.wait()
        if self._failure is not None:
            raise self._failure

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                taken, self._waiting = self._waiting, []
                number = max(number for number, _ in taken)
                await asyncio.to_thread(self._note, number, [rollout for _, rollout in taken])
                self._num_durable += len(taken)
                self._noted.set()
        except Exception as error:  # nobody awaits this task: the next flush says it
            self._failure = error
        finally:
            self._writing = None
            self._noted.set()

    async def _gather(self) -> None:
        """Let more rollouts finish first, unless someone waits for the note."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._every_s)
        self._hurry.clear()

    def _note(self, number: int, finished: Sequence[Finished]) -> None:
        beside = [[len(f.samples), dump_turns(f.turns), f.prompt] for f in finished]
        data = pack_samples([s for f in finished for s in f.samples], beside)
        self._notes.note("rollouts", number, data)


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
