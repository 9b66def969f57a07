"""The devices that a recipe is planned for: those that it states, or this host's GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from infra.cuda import gpu_sizes
from tasks.stage import Resources

GB = 10**9


@dataclass(frozen=True, slots=True)
class PlannedDevices:
    """Where GPUs are known of."""

    num_bytes: int
    """of each"""
    per_host: int
    num: int
    """of all hosts"""
    kind: str = ""


def stated_devices(resources: Resources) -> PlannedDevices | None:
    """None where the recipe says nothing of them: then nothing is known of how many there are."""
    stated = resources.devices
    if stated is None:
        return None
    return PlannedDevices(round(stated.memory_gb * GB), stated.per_host, stated.num, stated.kind)


def device_bytes(resources: Resources, kind: str = "") -> int | None:
    """Of each device, or of each of a kind; None where there are only CPUs, which need not be
    shared out."""
    for other in resources.other_devices:
        if kind and other.kind == kind:
            return round(other.memory_gb * GB)
    if resources.devices is not None:
        return round(resources.devices.memory_gb * GB)
    return min(gpu_sizes(), default=None)
