"""TakeLog: which groups each optimizer step trains on, written down before it does.

    buffer.take() ──▶ write(step, version, tickets) ──▶ update

With the journal, which has the rollouts of these tickets, and the checkpoint before it, a step can
be repeated exactly. A resumed attempt takes what the log says if all of it is there again.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from engines.rollout.records.notes import Notes
from infra.errors import InputError
from infra.timeline import TAKES, mark

TAKES_FILE = "takes.jsonl"
"""of an artifact"""


@dataclass(frozen=True, slots=True)
class Take:
    """Example: Take(step=3, version=2, tickets=(12, 13, 15, 17))"""

    step: int
    version: int
    """of the policy before the step"""
    tickets: tuple[int, ...]


class TakeLog:
    """Of one stage."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._takes: dict[int, Take] = {}

    async def recover(self, first: int) -> None:
        """Take up what earlier attempts took in steps from `first` on; the newest one counts."""
        pieces = await asyncio.to_thread(self._notes.notes, "takes", first)
        takes = [take for take in map(_read, pieces) if take is not None]
        self._takes = {take.step: take for take in takes}

    def of(self, step: int) -> Take | None:
        """What an earlier attempt took."""
        return self._takes.get(step)

    def from_step(self, step: int) -> list[Take]:
        """What earlier attempts took in this step and later ones."""
        return [take for take in self._takes.values() if take.step >= step]

    async def write(self, take: Take) -> None:
        """Durable when it returns; nothing is written if the log says so already."""
        mark(TAKES, f"step {take.step}", tickets=" ".join(map(str, take.tickets)))
        if self._takes.get(take.step) == take:
            return
        data = orjson.dumps([take.step, take.version, take.tickets])
        await asyncio.to_thread(self._notes.note, "takes", take.step, data)
        self._takes[take.step] = take

    async def export(self, folder: Path) -> list[Take]:
        """Write what all attempts took as `takes.jsonl`, a line for each step. -> the same"""
        pieces = await asyncio.to_thread(self._notes.notes, "takes", 1)
        by_step = {take.step: take for take in map(_read, pieces) if take is not None}
        takes = [by_step[step] for step in sorted(by_step)]
        lines = [orjson.dumps(asdict(take)) for take in takes]
        (folder / TAKES_FILE).write_bytes(b"".join(line + b"\n" for line in lines))
        return takes


def read_takes(file: Path) -> list[Take]:
    """What `TakeLog.export` wrote. Raises InputError."""
    try:
        found = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        return [Take(each["step"], each["version"], tuple(each["tickets"])) for each in found]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{file} cannot be read as a log of takes: {error}") from None


def _read(piece: bytes) -> Take | None:
    """None if a crash of the machine left it empty or incomplete."""
    try:
        step, version, tickets = orjson.loads(piece)
    except ValueError:
        return None
    return Take(step, version, tuple(tickets))
