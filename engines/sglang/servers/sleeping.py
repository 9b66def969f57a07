"""Giving back the device memory of a running server, and taking it again: SGLang's own requests.

They need a server with `enable_memory_saver`, which maps the memory at the same addresses again. A
scheduler that is asked while it works, or twice for the same, ends: so the server is emptied and
paused first, and its slot knows what sleeps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engines.devices.kinds import ServerPart
from engines.sglang.http import order, read_text
from engines.weight_versions import BROKEN_WEIGHTS

TAGS: Mapping[ServerPart, tuple[str, ...]] = {
    "weights": ("weights",),
    "cache": ("kv_cache", "cuda_graph"),
}
"""SGLang's names for a part"""
_MEMORY_S = 300.0
"""what giving back or taking a device's memory may take; graphs go through the host's"""
_CONTROL_S = 30.0


def put_to_sleep(url: str, parts: Collection[ServerPart]) -> None:
    """Give back these parts, which are awake; their content is lost. Raises EngineError.

    Whatever runs is ended: a stage lets it finish first. Without its weights a server calls them
    "broken", so that no client takes what it might answer.
    """
    if not parts:
        return
    read_text(url, "/abort_request", {"abort_all": True}, timeout=_CONTROL_S)
    order(url, "/pause_generation", {"mode": "retract"}, timeout=_CONTROL_S)
    if "weights" in parts:
        broken = {"new_version": BROKEN_WEIGHTS, "abort_all_requests": True}
        order(url, "/update_weight_version", broken, timeout=_CONTROL_S)
    read_text(url, "/release_memory_occupation", {"tags": _tags(parts)}, timeout=_MEMORY_S)


def wake(url: str, parts: Collection[ServerPart]) -> None:
    """Take these parts again, which sleep; weights have to be published or loaded afterwards. With
    its cache a server generates again. Raises EngineError."""
    if not parts:
        return
    read_text(url, "/resume_memory_occupation", {"tags": _tags(parts)}, timeout=_MEMORY_S)
    if "cache" in parts:
        order(url, "/continue_generation", {}, timeout=_CONTROL_S)


def _tags(parts: Collection[ServerPart]) -> list[str]:
    return [tag for part in sorted(parts) for tag in TAGS[part]]
