"""What every way of moving weights from a trainer to servers has to do, reports, and can ask."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from engines.sglang.http import call
from engines.weights.buckets import TrainedWeights
from engines.weights.fp8_blocks import FROM_PLAIN_WORD
from infra.errors import EngineError

CONTROL_S = 30.0
CHECK_S = 120.0
"""it reads all its weights"""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """One publish of all weights to all servers.

    Example: PublishReport(7, "shared memory", 2631680, 2, seconds=0.05, pause_seconds=0.04)
    """

    version: int
    transport: str
    """its name: shared memory, broadcast, disk or disk delta"""
    bytes: int
    """size of the weights, counted once however many servers took them"""
    servers: int
    seconds: float
    """from the call to the last server's verified new version"""
    pause_seconds: float = 0.0
    """of these, those in which no server generated"""
    written_bytes: int = 0
    """of a disk delta: what was written of them, compressed"""
    kept_bytes: int = 0
    """of a disk delta: host memory of all ranks together that is kept for the next one"""
    refused: str = ""
    """why a server did not take them; the trainer is as it was"""


@dataclass(frozen=True, slots=True)
class Target:
    """A running server that is to take weights. Example: Target("http://10.0.0.2:30000", 2, "7")"""

    url: str
    num_ranks: int
    """tensor-parallel ranks"""
    version: str
    """of the weights that it says it holds"""
    in_fp8: bool = False
    """whether it takes the layers' matrices as FP8"""


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
    """Return what these servers are and hold. Raises EngineError if one does not answer."""
    if not urls:
        raise EngineError("no server to publish to")
    with ThreadPoolExecutor(len(urls), thread_name_prefix="targets") as pool:
        return list(pool.map(_target, urls))


def _target(url: str) -> Target:
    version = str(call(url, "/model_info", timeout=CONTROL_S)["weight_version"])
    info = call(url, "/server_info", timeout=CONTROL_S)
    in_fp8 = FROM_PLAIN_WORD in str(info.get("json_model_override_args"))
    return Target(url, int(info["tp_size"]), version, in_fp8)


def as_taken(weights: TrainedWeights, targets: Sequence[Target]) -> TrainedWeights:
    """The weights in the form that these servers take, which are all alike."""
    return replace(weights, in_fp8=any(target.in_fp8 for target in targets))


@dataclass(frozen=True, slots=True)
class ServerWeights:
    """Example: ServerWeights(version="7", checksum="9f2c...")

    Servers with the same number of ranks that hold the same bits have the same checksum, whichever
    way these came.
    """

    version: str
    checksum: str


def server_weights(url: str) -> ServerWeights:
    """The version that a server states and the checksum of the weights in its memory.

    Raises EngineError if it does not answer.
    """
    version = str(call(url, "/model_info", timeout=CONTROL_S)["weight_version"])
    checked = call(url, "/weights_checker", {"action": "checksum"}, timeout=CHECK_S)
    return ServerWeights(version, str(checked["per_engine_checksum"]))
