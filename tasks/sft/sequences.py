"""Token sequences in a file on this machine: five bytes a token, and one of them in memory."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np

from engines.batching import TokenSequence

_WIDTH = 5
"""bytes of a token: its id, and whether the loss is taken on it"""


class SequenceFile(Sequence[TokenSequence]):
    """Filled once, then read in any order. The file has no name and goes with this object."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._ends = array("q", [0])
        """tokens up to the end of each sequence, after a zero"""
        self.trained = 0
        """tokens that the loss is taken on, of all"""

    @property
    def tokens(self) -> int:
        """Number of all."""
        return self._ends[-1]

    def append(self, sequence: TokenSequence) -> None:
        mask = np.asarray(sequence.loss_mask, np.int8)
        self._file.write(np.asarray(sequence.tokens, np.int32).tobytes() + mask.tobytes())
        self._file.flush()
        self._ends.append(self.tokens + len(mask))
        self.trained += int(mask.sum())

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> TokenSequence: ...

    @overload
    def __getitem__(self, index: slice) -> list[TokenSequence]: ...

    def __getitem__(self, index: int | slice) -> TokenSequence | list[TokenSequence]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        start, length = self._ends[place], self._ends[place + 1] - self._ends[place]
        data = os.pread(self._file.fileno(), length * _WIDTH, start * _WIDTH)
        tokens, mask = (
            np.frombuffer(data, np.int32, length),
            np.frombuffer(data[4 * length :], np.int8),
        )
        return TokenSequence(tokens.tolist(), mask.tolist())
