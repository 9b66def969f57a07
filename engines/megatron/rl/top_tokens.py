"""The likeliest tokens that teachers name at each trained place of a step. Axes: R, K as below."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.inputs import ComparedTokens
from engines.megatron.train.pack import Pack


@dataclass(frozen=True, slots=True)
class TopTokens:
    places: NDArray[np.int64]
    """[R] of the trained tokens among all of the step's sequences, ascending"""
    ids_RK: NDArray[np.int32]
    logprobs_RK: NDArray[np.float32]
    rest_R: NDArray[np.float32]
    """logprob of all other tokens together"""
    is_whole: bool
    """whether these K are the vocabulary"""

    @staticmethod
    def empty(places: NDArray[np.int64], count: int, vocab: int) -> TopTokens:
        size = (len(places), count)
        return TopTokens(
            places,
            np.zeros(size, np.int32),
            np.zeros(size, np.float32),
            np.zeros(len(places), np.float32),
            is_whole=count == vocab,
        )

    def fill(self, places: NDArray[np.int64], said: NDArray[np.float32]) -> None:
        """[2K + 1, places]: K logprobs, the rest's, K ids."""
        rows, count = np.searchsorted(self.places, places), self.ids_RK.shape[1]
        self.logprobs_RK[rows] = said[:count].T
        self.rest_R[rows] = said[count]
        self.ids_RK[rows] = said[count + 1 :].T

    def ids(self, pack: Pack) -> Tensor:
        """[rows of the pack, K]"""
        return torch.from_numpy(self.ids_RK[self._rows(pack)]).to(pack.labels)

    def compared(self, pack: Pack, student_logprobs_RK: Tensor) -> ComparedTokens:
        rows = self._rows(pack)
        logprobs, rest = (
            torch.from_numpy(values[rows]).to(student_logprobs_RK)
            for values in (self.logprobs_RK, self.rest_R)
        )
        return ComparedTokens(logprobs, student_logprobs_RK, None if self.is_whole else rest)

    def _rows(self, pack: Pack) -> NDArray[np.int64]:
        return np.searchsorted(self.places, pack.targets)
