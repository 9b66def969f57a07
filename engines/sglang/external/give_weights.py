"""A model folder's weights for running servers, pushed from this process or read by the servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from engines.weights.broadcast import Broadcast
from engines.weights.buckets import TrainedWeights
from engines.weights.choice import transport_to
from engines.weights.disk import load_folder
from engines.weights.model_folder import folder_weights
from engines.weights.ranks import ALONE
from engines.weights.report import PublishReport
from engines.weights.shared_memory import SharedMemory
from engines.weights.spec import WeightTransport
from engines.weights.transport import Target, Transport, find_targets
from infra.errors import EngineError

Way = Literal["auto", "broadcast", "disk", "shared-memory"]
_log = logging.getLogger(__name__)


def give_weights(
    folder: Path, urls: Sequence[str], version: int, way: Way = "auto"
) -> PublishReport:
    """Put the folder's weights on every server as `version`, all or none.

    `auto` is shared memory for servers on this host, broadcast for others, and broadcast as well
    where servers at this host's address turn out not to share its memory (containers). `disk` needs
    servers that read `folder` under this very path. Raises EngineError if a server refuses: then
    all call their weights "broken"; InputError for a folder without weights.
    """
    weights = folder_weights(folder)
    if way == "disk":
        return _loaded(folder, weights, urls, version)
    targets = find_targets(urls)
    transport = _transport(way, targets)
    try:
        return _pushed(transport, weights, targets, version)
    except EngineError as error:
        if way != "auto" or not isinstance(transport, SharedMemory):
            raise
        _log.warning("shared memory did not work (%s); trying broadcast", error)
        return _pushed(Broadcast(), weights, find_targets(urls), version)


def _transport(way: Way, targets: Sequence[Target]) -> Transport:
    if way == "auto":
        return transport_to(targets, ALONE, WeightTransport())
    return Broadcast() if way == "broadcast" else SharedMemory()


def _pushed(
    transport: Transport, weights: TrainedWeights, targets: Sequence[Target], version: int
) -> PublishReport:
    try:
        return transport.push(weights, targets, version)
    finally:
        transport.close()


def _loaded(
    folder: Path, weights: TrainedWeights, urls: Sequence[str], version: int
) -> PublishReport:
    began = time.perf_counter()
    paused_s = load_folder(folder.resolve(), urls, version)
    return PublishReport(
        version=version,
        transport="disk",
        bytes=sum(weight.local.nbytes for weight in weights.weights),
        servers=len(urls),
        seconds=time.perf_counter() - began,
        pause_seconds=paused_s,
    )
