"""TrainedRollouts: what each optimizer step was trained on, kept for `tributary replay`.

    take ──▶ keep(step, groups) ──▶ the stage's notes ──▶ export: `trained/<step>.bin`

The journal alone would not do: it has every rollout, and only since the last checkpoints.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from engines.rollout.records.notes import Notes
from engines.rollout.records.packed_groups import pack_groups, unpack_groups
from engines.rollout.records.take_log import TAKES_FILE, Take, read_takes
from engines.types import Group
from infra.errors import InputError

_FOLDER = "trained"
_READERS = 8
"""steps that are read at once: a store far away takes its time for each"""


class TrainedRollouts:
    """Of one stage."""

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
        """Whether the step's rollouts were kept."""
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
    """What a step was trained on. Raises InputError if that is lost or damaged."""
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
