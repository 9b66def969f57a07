"""What every way of moving weights from a trainer to servers has to do."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from engines.sglang.http import call
from engines.weights.buckets import TrainedWeights
from engines.weights.report import PublishReport
from infra.errors import EngineError

CONTROL_S = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """A running server that is to take weights. Example: Target("http://10.0.0.2:30000", 2, "7")"""

    url: str
    num_ranks: int
    """tensor-parallel ranks"""
    version: str
    """of the weights that it says it holds"""


class Transport(Protocol):
    """One way, kept as long as its trainer: it may hold memory and connections between pushes."""

    @property
    def name(self) -> str: ...

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        """Put all weights on every target as `version`; all ranks call it with the same targets.

        Raises on every rank if any failed, EngineError if a server refuses. Then targets whose
        weights may be half new call them "broken" and take requests, and the push can be repeated.
        """
        ...

    def close(self) -> None:
        """Give memory and connections back."""
        ...


def find_targets(urls: Sequence[str]) -> list[Target]:
    """What these servers are and hold. Raises EngineError if one does not answer."""
    if not urls:
        raise EngineError("no server to publish to")
    with ThreadPoolExecutor(len(urls), thread_name_prefix="targets") as pool:
        return list(pool.map(_target, urls))


def _target(url: str) -> Target:
    version = str(call(url, "/model_info", timeout=CONTROL_S)["weight_version"])
    return Target(url, int(call(url, "/server_info", timeout=CONTROL_S)["tp_size"]), version)
