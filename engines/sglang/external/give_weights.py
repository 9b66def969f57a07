"""A model folder's weights for running servers, sent from this process or read by the servers.

Never through shared memory: torch keeps a process for it that has this one's output open, and lives
as long as the servers do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from engines.weights.broadcast.broadcast import Broadcast
from engines.weights.disk import load_folder
from engines.weights.model_folder import folder_weights
from engines.weights.transport import PublishReport, as_taken, find_targets
from infra.errors import EngineError

Way = Literal["auto", "broadcast", "disk"]
_log = logging.getLogger(__name__)


def give_weights(
    folder: Path, urls: Sequence[str], version: int, way: Way = "auto"
) -> PublishReport:
    """Put the folder's weights on every server as `version`, all or none.

    `auto` is broadcast, and disk where that does not work: `disk` needs servers that read `folder`
    under this very path. Raises EngineError if a server refuses: then all call their weights
    "broken"; InputError for a folder without weights.
    """
    if way != "auto":
        return _given(folder, urls, version, way)
    try:
        return _given(folder, urls, version, "broadcast")
    except EngineError as error:
        _log.warning("broadcast did not work (%s); the servers are told to read the folder", error)
        try:
            return _given(folder, urls, version, "disk")
        except EngineError as second:
            raise EngineError(f"by broadcast: {error}; by disk: {second}") from error


def _given(
    folder: Path, urls: Sequence[str], version: int, way: Literal["broadcast", "disk"]
) -> PublishReport:
    weights = folder_weights(folder)
    if way == "broadcast":
        transport = Broadcast()
        try:
            targets = find_targets(urls)
            return transport.push(as_taken(weights, targets), targets, version)
        except RuntimeError as error:  # torch's, of the group that it and the servers make
            raise EngineError(
                f"{', '.join(urls)} did not join a broadcast from here ({error}): can they connect"
                " to this host, on any port?"
            ) from error
        finally:
            transport.close()
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
