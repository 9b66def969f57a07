"""Whether the ranks and servers of a plan find places on the stated devices."""

from __future__ import annotations

from collections.abc import Iterator

from flows.checks.memory.planned_devices import PlannedDevices
from flows.plan import PlannedStage
from tasks.stage import Resources


def placement_problems(
    resources: Resources, plan: list[PlannedStage], devices: PlannedDevices
) -> Iterator[str]:
    """Each as `field: what it needs; what there is`."""
    yield from _pool(resources, plan, devices)
    for stage in plan:
        needed = devices_of(stage)
        if needed > devices.num:
            yield (
                f"stage {stage.name}: its ranks and servers need {needed} devices together,"
                f" resources.devices are {devices.num}: lower its layout or its servers"
            )
        for field, size in _groups(stage).items():
            if size > devices.per_host or devices.per_host % size:
                yield (
                    f"stage {stage.name}: {field} is {size}, but a group of {size} devices lies on"
                    f" one host, and a host's {devices.per_host} devices are not a multiple of it"
                )


def devices_of(stage: PlannedStage) -> int:
    """Trainer, critic and servers each have devices of their own, unless they take turns."""
    both = ranks_of(stage), _server_devices(stage)
    return max(both) if stage.resources.share else sum(both)


def ranks_of(stage: PlannedStage) -> int:
    """Of its trainer and its critic."""
    ranks = stage.resources.trainer.world_size if stage.spec.trained_roles else 0
    return ranks + (stage.critic.world_size if stage.critic is not None else 0)


def _server_devices(stage: PlannedStage) -> int:
    if stage.spec.fleet is None or stage.spec.fleet.external:
        return 0
    return stage.resources.servers * stage.resources.tp_per_server


def _pool(resources: Resources, plan: list[PlannedStage], devices: PlannedDevices) -> Iterator[str]:
    """Warm ranks and servers stay where they are between stages."""
    tp = max((s.resources.tp_per_server for s in plan if _server_devices(s)), default=0)
    both = resources.trainer_ranks, resources.servers * tp
    needed = max(both) if any(stage.resources.share for stage in plan) else sum(both)
    if needed > devices.num:
        yield (
            f"resources: {resources.trainer_ranks} trainer_ranks and {resources.servers} servers of"
            f" {tp} devices need {needed} devices, resources.devices are {devices.num}: lower one"
            " of them"
        )


def _groups(stage: PlannedStage) -> dict[str, int]:
    """Devices that must lie on one host, by the field that says how many."""
    groups: dict[str, int] = {}
    if stage.spec.trained_roles:
        groups["resources trainer.tp"] = stage.resources.trainer.tp
    if stage.critic is not None:
        groups["resources critic.tp"] = stage.critic.tp
    if _server_devices(stage):
        groups["resources tp_per_server"] = stage.resources.tp_per_server
    return groups
