"""Notes: where a stage keeps small durable pieces (`tasks.stage.Checkpoints`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from infra.store.retention import NoteKind


class Notes(Protocol):
    """What attempts wrote down before a checkpoint contained it."""

    def note(self, kind: NoteKind, number: int, data: bytes) -> None: ...

    def notes(self, kind: NoteKind, first: int, last: int | None = None) -> Sequence[bytes]:
        """Under numbers from `first` to `last` (None: to the end), by number, oldest first."""
        ...
