"""A copy of the weights beside a server, and what of it the server's own memory holds."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engines.weights.disk_delta.weight_copy import WeightCopy
from engines.weights.server_weights import ServerWeights
from infra.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class ServedCopy:
    """Lives in the server's HTTP process; its methods may be called from several threads."""

    _copy: WeightCopy = field(default_factory=WeightCopy)
    _served: Mapping[str, str] = field(default_factory=dict[str, str])
    """checksums of the tensors that the server loaded last from here"""
    _served_as: ServerWeights | None = None
    """what the server said of itself when it had loaded them"""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(
        self, url: str, folder: str, held: ServerWeights
    ) -> Sequence[Sequence[tuple[str, Tensor]]]:
        """Bring the copy to the version in `folder` of `url`; returns the tensors, by bucket, that
        the server lacks. These are all unless it holds (`held`) just what it loaded last from here.

        Raises as `WeightCopy.catch_up`.
        """
        with self._lock:
            self._copy.catch_up(Store(url), folder)
            known = self._served if held == self._served_as else {}
            checksums = self._copy.checksums
            return self._copy.buckets(lambda name: known.get(name) != checksums[name])

    def confirm(self, held: ServerWeights) -> None:
        """The server has loaded what was prepared, and says now that it holds this."""
        with self._lock:
            self._served, self._served_as = self._copy.checksums, held

    def forget(self) -> None:
        """Give the memory back: the next version can only be taken whole."""
        with self._lock:
            self._copy.forget()
            self._served, self._served_as = {}, None
