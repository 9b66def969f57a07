"""Findings, durable as they come, so that no attempt tries a problem again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from engines.rollout.records.note_writer import NoteWriter
from engines.types import Split
from infra.store.retention import NoteKind
from tasks.admit.admission import Finding, Refusal
from tasks.resources import NOTE_SECONDS
from tasks.stage import Checkpoints

_KIND: NoteKind = "findings"
Key = tuple[str, str]
"""a domain's name and a split"""


@dataclass(slots=True)
class FindingJournal:
    """Of one stage."""

    _writer: NoteWriter[dict[str, Any]]
    _known: dict[Key, dict[str, list[Refusal]]] = field(
        default_factory=dict[Key, dict[str, list[Refusal]]]
    )

    @classmethod
    async def open(cls, checkpoints: Checkpoints) -> Self:
        """With what earlier attempts found."""
        journal = cls(NoteWriter(checkpoints, _KIND, _encode, NOTE_SECONDS))
        for piece in await asyncio.to_thread(checkpoints.notes, _KIND, 0, 0):
            for raw in json.loads(piece):
                of = journal._known.setdefault((raw["domain"], raw["split"]), {})
                of[raw["id"]] = [Refusal(cause, text) for cause, text in raw["refusals"]]
        return journal

    def known(self, domain: str, split: Split) -> Mapping[str, Sequence[Refusal]]:
        """By problem."""
        return self._known.get((domain, split), {})

    def keep(self, domain: str, split: Split, found: Finding) -> None:
        refusals = [(refusal.cause, refusal.text) for refusal in found.refusals]
        piece = {"domain": domain, "split": split, "id": found.problem.id, "refusals": refusals}
        self._writer.keep(0, piece)

    async def flush(self) -> None:
        """All that was kept so far is durable, or the store's error is raised."""
        await self._writer.flush()


def _encode(pieces: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps(list(pieces)).encode()
