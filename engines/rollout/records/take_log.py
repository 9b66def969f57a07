"""TakeLog: which groups each optimizer step trains on, written down before it does.

    buffer.take() ──▶ write(step, version, tickets) ──▶ update

With the journal, which has the rollouts of these tickets, and the checkpoint before it, a step can
be repeated exactly. A resumed attempt takes what the log says if all of it is there again. For
`tributary replay`, `TrainedRollouts` keeps what each step was trained on, as the journal has every
rollout, and only since the last checkpoints:

    take ──▶ keep(step, groups) ──▶ the stage's notes ──▶ export: `trained/<step>.bin`
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import orjson

from engines.rollout.records.journals import Notes
from engines.rollout.records.packing import pack_groups, unpack_groups
from engines.types import Group
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
    """Keeps what one stage took."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._takes: dict[int, Take] = {}

    async def recover(self, first: int) -> None:
        """Take up what earlier attempts took in steps from `first` on; the newest one counts."""
        pieces = await asyncio.to_thread(self._notes.notes, "takes", first)
        self._takes = _by_step(pieces)

    def of(self, step: int) -> Take | None:
        """Return what an earlier attempt took."""
        return self._takes.get(step)

    def from_step(self, step: int) -> list[Take]:
        """Return what earlier attempts took in this step and later ones."""
        return [take for take in self._takes.values() if take.step >= step]

    async def forget(self, step: int) -> None:
        """Follow earlier attempts no more, from this step on: its weights will be others. A later
        attempt does not follow them either."""
        for number in [n for n in self._takes if n >= step]:
            del self._takes[number]
            data = orjson.dumps([number, _FORGOTTEN, []])
            await asyncio.to_thread(self._notes.note, "takes", number, data)

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
        by_step = _by_step(pieces)
        takes = [by_step[step] for step in sorted(by_step)]
        lines = [orjson.dumps(asdict(take)) for take in takes]
        (folder / TAKES_FILE).write_bytes(b"".join(line + b"\n" for line in lines))
        return takes


def read_takes(file: Path) -> list[Take]:
    """Return what `TakeLog.export` wrote. Raises InputError."""
    try:
        found = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        return [Take(each["step"], each["version"], tuple(each["tickets"])) for each in found]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{file} cannot be read as a log of takes: {error}") from None


_FORGOTTEN = -1
"""the version in place of a take that no attempt is to follow"""


def _by_step(pieces: Sequence[bytes]) -> dict[int, Take]:
    """Return the newest take of each step, without those that were forgotten."""
    takes = {take.step: take for take in map(_read, pieces) if take is not None}
    return {step: take for step, take in takes.items() if take.version != _FORGOTTEN}


def _read(piece: bytes) -> Take | None:
    """None if a crash of the machine left it empty or incomplete."""
    try:
        step, version, tickets = orjson.loads(piece)
    except ValueError:
        return None
    return Take(step, version, tuple(tickets))


_FOLDER = "trained"

_READERS = 8
"""steps that are read at once: a store far away takes its time for each"""


class TrainedRollouts:
    """The rollouts that one stage trained on."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def keep(self, step: int, groups: Sequence[Group]) -> None:
        """Durable when it returns; a step that is repeated is trained on the same again."""
        await asyncio.to_thread(self._notes.note, "trained", step, pack_groups(groups))

    async def export(self, folder: Path, takes: Sequence[Take]) -> list[int]:
        """Write a file for each of the steps into an artifact's folder. -> steps that were trained
        by an attempt that kept nothing: without them no file stays."""
        return await asyncio.to_thread(self._export, folder / _FOLDER, takes)

    def _export(self, folder: Path, takes: Sequence[Take]) -> list[int]:
        folder.mkdir()
        steps = [take.step for take in takes]
        with ThreadPoolExecutor(_READERS) as readers:
            written = list(readers.map(partial(self._write, folder), steps))
        missing = [step for step, is_there in zip(steps, written, strict=True) if not is_there]
        if missing:
            shutil.rmtree(folder)
        return missing

    def _write(self, folder: Path, step: int) -> bool:
        """Return whether the step's rollouts were kept."""
        found = self._notes.notes("trained", step, step)
        if found:
            _file(folder, step).write_bytes(found[-1])  # of several attempts the newest
        return bool(found)


def kept_takes(artifact: Path) -> list[Take]:
    """The steps whose rollouts `groups_of` reads. Raises InputError if none are kept."""
    if not (artifact / _FOLDER).is_dir():
        raise InputError(
            f"{artifact} has no rollouts to train on again: they are kept by `keep_rollouts: true`"
            " in the stage's settings, while it runs"
        )
    return read_takes(artifact / TAKES_FILE)


def groups_of(artifact: Path, take: Take) -> list[Group]:
    """Return what a step was trained on. Raises InputError if that is lost or damaged."""
    try:
        groups = unpack_groups(_file(artifact / _FOLDER, take.step).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{artifact}: the rollouts of step {take.step}: {error}") from None
    if tuple(group.ticket for group in groups) != take.tickets:
        raise InputError(
            f"{artifact}: step {take.step} took tickets {list(take.tickets)}, but the rollouts"
            f" kept are of {[group.ticket for group in groups]}"
        )
    return groups


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}.bin"
