"""Judged groups in an artifact, to be trained on later: files of some groups each, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from engines.rollout.records.packed_groups import pack_groups, unpack_groups
from engines.types import Group
from infra.errors import InputError

_FOLDER = "groups"
_IN_A_FILE = 64


def save_groups(artifact: Path, groups: Sequence[Group]) -> None:
    """Write them into an artifact's folder."""
    folder = artifact / _FOLDER
    folder.mkdir()
    for number, first in enumerate(range(0, len(groups), _IN_A_FILE)):
        (folder / f"{number:06d}.bin").write_bytes(pack_groups(groups[first : first + _IN_A_FILE]))


def saved_groups(artifact: Path) -> Iterator[Group]:
    """What `save_groups` wrote, in its order. Raises InputError for a file that is damaged."""
    for file in sorted((artifact / _FOLDER).iterdir()):
        try:
            yield from unpack_groups(file.read_bytes())
        except ValueError as error:
            raise InputError(f"{file}: {error}") from None
