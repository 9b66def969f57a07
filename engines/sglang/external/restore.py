"""Leaving a server of others as it was found: its own weights, under their own version."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.http import Refused, call, order
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import TAKE_S
from engines.weights.transport import CONTROL_S, server_weights
from engines.weights.update import Servers, Update
from infra.errors import EngineError


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """Example: OwnWeights("http://10.0.0.2:30000", "/models/mine", "default", "9f2c...", 2631)"""

    url: str
    model_path: str
    """as the server reads it: a folder of its host, or a name on a hub"""
    version: str
    checksum: str
    """empty where the server offers none"""
    num_bytes: int
    """size of the model, which says how long reading it may take"""


def restore(found: OwnWeights) -> None:
    """Let the server load what it was found with; nothing happens if it holds that already.

    Raises EngineError if it cannot: then it is left paused, as its weights may be half new; and if
    those that it serves now are not those that it had.
    """
    if _holds(found):
        return
    with suppress(EngineError):  # refused when no update is open
        order(found.url, "/end_weight_update", {}, timeout=CONTROL_S)
    bound_s = transfer_bound_s(found.num_bytes, TAKE_S)
    body = {
        "model_path": found.model_path,
        "weight_version": BROKEN_WEIGHTS,
        "flush_cache": False,
    }
    try:
        with Servers([found.url]) as servers:
            update = Update(servers, found.version, in_parts=False)
            update.begin()
            order(found.url, "/update_weights_from_disk", body, timeout=bound_s)
            update.end()
    except EngineError as error:
        with suppress(EngineError):
            order(found.url, "/pause_generation", {"mode": "retract"}, timeout=CONTROL_S)
        raise EngineError(
            f"{found.url} could not be given its weights in {found.model_path} again ({error}). It"
            " is paused, so that nobody gets answers of half-new weights: restart it"
        ) from error
    if found.checksum and not _holds(found):
        raise EngineError(
            f"{found.url} serves the weights in {found.model_path} again. Those that it was found"
            " with were others, which had been pushed to it and are in no folder"
        )


def _holds(found: OwnWeights) -> bool:
    """Whether the server says its own version and shows its own bits."""
    said = str(call(found.url, "/model_info", timeout=CONTROL_S)["weight_version"])
    if said != found.version or not found.checksum:
        return False
    try:
        return server_weights(found.url).checksum == found.checksum
    except Refused:
        return False
