"""WeightVersions: the version of the weights behind each token, as runs of equal versions.

A turn has one version, or a few if weights were published while it was sampled; so what is asked
of the versions costs the number of runs, not of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_VERSION = -1
"""of a token that no weights wrote: the prompt's, a tool's"""
BROKEN_WEIGHTS = "broken"
"""what a server calls weights that may be half new: clients accept no token of them"""


@dataclass(frozen=True, slots=True)
class WeightVersions:
    """Example: WeightVersions(((-1, 2), (3, 5))): two tokens of the prompt, five of weights 3."""

    runs: tuple[tuple[int, int], ...] = ()
    """(version, number of tokens > 0); neighbours differ"""

    @staticmethod
    def of_runs(runs: Iterable[tuple[int, int]]) -> WeightVersions:
        """Make versions of runs that may be empty, or like their neighbours."""
        merged: list[tuple[int, int]] = []
        for version, count in runs:
            if merged and merged[-1][0] == version:
                merged[-1] = (version, merged[-1][1] + count)
            elif count > 0:
                merged.append((version, count))
        return WeightVersions(tuple(merged))

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)

    def __add__(self, later: WeightVersions) -> WeightVersions:
        return WeightVersions.of_runs([*self.runs, *later.runs])

    def first(self, count: int) -> WeightVersions:
        """Return the versions of the first `count` tokens."""
        kept: list[tuple[int, int]] = []
        for version, length in self.runs:
            kept.append((version, min(length, count)))
            count -= kept[-1][1]
        return WeightVersions.of_runs(kept)

    @property
    def sampled(self) -> frozenset[int]:
        """The versions that wrote tokens."""
        return frozenset(version for version, _ in self.runs if version != NO_VERSION)

    @property
    def oldest(self) -> int:
        """-1 where no token was sampled."""
        return min(self.sampled, default=NO_VERSION)

    def of_each(self) -> NDArray[np.int32]:
        """[T] the version of each token."""
        import numpy as np

        runs = np.array(self.runs, np.int32).reshape(-1, 2)
        return np.repeat(runs[:, 0], runs[:, 1])
