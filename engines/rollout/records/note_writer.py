"""NoteWriter: pieces of work as notes, written beside the event loop that makes them.

keep(piece) ──▶ one note for all that were kept meanwhile ──▶ the stage's notes
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from engines.rollout.records.notes import Notes
from infra.store.retention import NoteKind

Piece = TypeVar("Piece")


class NoteWriter(Generic[Piece]):
    """Use it in one event loop; writing happens in a thread, one note at a time.

    A note takes up what was kept in `every_s` seconds: many small writes cost a sweep more than a
    kill may.
    """

    def __init__(
        self,
        notes: Notes,
        kind: NoteKind,
        encode: Callable[[Sequence[Piece]], bytes],
        every_s: float = 0.0,
    ) -> None:
        self._notes, self._encode, self._every_s = notes, encode, every_s
        self._kind: NoteKind = kind
        self._waiting: list[tuple[int, Piece]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._hurry = asyncio.Event()
        self._noted = asyncio.Event()
        """set after each note"""
        self._num_kept = self._num_durable = 0
        """pieces"""

    def keep(self, number: int, piece: Piece) -> None:
        """Write it soon: with the others that are kept until the writer is free, under the highest
        of their numbers."""
        self._num_kept += 1
        self._waiting.append((number, piece))
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
                await asyncio.to_thread(self._note, number, [piece for _, piece in taken])
                self._num_durable += len(taken)
                self._noted.set()
        except Exception as error:  # nobody awaits this task: the next flush says it
            self._failure = error
        finally:
            self._writing = None
            self._noted.set()

    async def _gather(self) -> None:
        """Let more pieces come first, unless someone waits for the note."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._every_s)
        self._hurry.clear()

    def _note(self, number: int, pieces: Sequence[Piece]) -> None:
        self._notes.note(self._kind, number, self._encode(pieces))
