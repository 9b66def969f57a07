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
from dataclasses import dataclass
from itertools import islice

import numpy as np

from engines.rollout.records.json_text import dump_turns, load_turns
from engines.rollout.records.note_writer import NoteWriter
from engines.rollout.records.notes import Notes
from engines.rollout.records.packed import pack_samples, unpack_samples
from engines.types import Message, Sample, Status, TokenIds


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that is over: its judged samples, and the turns after the problem's messages."""

    samples: tuple[Sample, ...]
    turns: tuple[Message, ...]
    prompt: int
    """checksum of the problem's prompt, by which one with another prompt is told apart"""

    @property
    def rollout_id(self) -> str:
        return self.samples[0].rollout_id

    @property
    def has_failed(self) -> bool:
        """Whether it ended for a reason that may be over at another try."""
        return self.samples[0].status in (Status.ABORTED, Status.FAILED)

    def is_of(self, oldest: int, newest: int) -> bool:
        """Whether weights of these versions alone wrote it."""
        return all(oldest <= v <= newest for s in self.samples for v in s.weight_versions.sampled)


def prompt_checksum(prompt_ids: TokenIds) -> int:
    return zlib.crc32(np.asarray(prompt_ids, np.int32).tobytes())


class RolloutJournal:
    """A note takes up what finished in `every_s` seconds."""

    def __init__(self, notes: Notes, every_s: float = 0.0) -> None:
        self._notes = notes
        self._writer = NoteWriter(notes, "rollouts", pack_rollouts, every_s)

    async def read(self, first: int, last: int | None = None) -> dict[str, Finished]:
        """Rollouts that earlier attempts finished, by id: those whose piece has a number from
        `first` to `last` (None: to the end)."""
        pieces = await asyncio.to_thread(self._notes.notes, "rollouts", first, last)
        found = [rollout for piece in pieces for rollout in _read(piece)]
        return {f.rollout_id: f for f in found}

    def keep(self, number: int, rollout: Finished) -> None:
        """Write it soon, under its number or a higher one."""
        self._writer.keep(number, rollout)

    async def flush(self) -> None:
        """All that was kept so far is durable, or the store's error is raised."""
        await self._writer.flush()


def pack_rollouts(finished: Sequence[Finished]) -> bytes:
    beside = [[len(f.samples), dump_turns(f.turns), f.prompt] for f in finished]
    return pack_samples([s for f in finished for s in f.samples], beside)


def _read(piece: bytes) -> list[Finished]:
    """Rollouts of a note; none if a crash of the machine left it empty or incomplete."""
    try:
        return unpack_rollouts(piece)
    except ValueError:
        return []


def unpack_rollouts(packed: bytes) -> list[Finished]:
    """The counterpart of `pack_rollouts`. Raises ValueError for data that are damaged."""
    samples, beside = unpack_samples(packed)
    rest = iter(samples)
    return [
        Finished(tuple(islice(rest, count)), load_turns(turns), prompt)
        for count, turns, prompt in beside
    ]
