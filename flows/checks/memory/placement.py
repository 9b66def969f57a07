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
        yield from _role_problems(resources, stage)
        needed = devices_of(stage, devices.kind)
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


def devices_of(stage: PlannedStage, kind: str = "") -> int:
    """Trainer, critic and servers each have devices of their own, unless they take turns; so have
    the models that rewards ask. Those that want a device of another kind are not counted."""
    both = ranks_of(stage), _server_devices(stage)
    own = max(both) if stage.resources.share else sum(both)
    return own + _role_devices(stage, kind)


def _role_devices(stage: PlannedStage, kind: str) -> int:
    asked = [stage.resources.of_role(name) for name in stage.roles]
    return sum(r.servers * r.tp_per_server for r in asked if r.device in ("", kind))


def devices_for(resources: Resources, kind: str) -> tuple[int, int]:
    """How many devices a role that wants this kind finds on a host, and on all."""
    stated = [d for d in (resources.devices, *resources.other_devices) if d is not None]
    of_kind = next((d for d in stated if kind and d.kind == kind), stated[0])
    return of_kind.per_host, of_kind.num


def _role_problems(resources: Resources, stage: PlannedStage) -> Iterator[str]:
    """Of roles that want a kind of device of their own, and of groups that lie on one host."""
    wanted: dict[str, int] = {}
    for name in stage.roles:
        role = stage.resources.of_role(name)
        per_host, _ = devices_for(resources, role.device)
        if role.tp_per_server > per_host or per_host % role.tp_per_server:
            yield (
                f"stage {stage.name}: resources roles.{name}.tp_per_server is {role.tp_per_server},"
                f" but a server's devices lie on one host, and a host's {per_host} devices are not"
                " a multiple of it"
            )
        if resources.devices is not None and role.device not in ("", resources.devices.kind):
            needed = role.servers * role.tp_per_server
            wanted[role.device] = wanted.get(role.device, 0) + needed
    for kind, needed in wanted.items():
        _, there = devices_for(resources, kind)
        if needed > there:
            yield (
                f"stage {stage.name}: its roles need {needed} devices of kind {kind}, and"
                f" resources.other_devices are {there}: lower their servers or tp_per_server"
            )


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
    of_roles = [sum(s.resources.of_role(name).servers for name in s.roles) for s in plan]
    servers = max(resources.servers - max(of_roles, default=0), 0)
    both = resources.trainer_ranks, servers * tp
    needed = max(both) if any(stage.resources.share for stage in plan) else sum(both)
    needed += max((_role_devices(stage, devices.kind) for stage in plan), default=0)
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
