"""What every role of a plan needs, and which of it no device holds."""

from __future__ import annotations

from collections.abc import Iterator

from engines.memory.needs import TrainerNeeds
from flows.checks.memory.base_model import base_model
from flows.checks.memory.changes import Change, Room, server_change, trainer_change
from flows.checks.memory.machine import (
    host_cautions,
    machine_bytes,
    machine_cautions,
    side_by_side,
)
from flows.checks.memory.placement import devices_for, devices_of, placement_problems
from flows.checks.memory.planned_devices import GB, PlannedDevices, device_bytes, stated_devices
from flows.checks.memory.roles import RoleMemory, longest_sequence, roles_of
from flows.checks.memory.served import role_model, served_memory
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.cuda import gpu_sizes


def planned_memory(recipe: Recipe, plan: list[PlannedStage]) -> list[RoleMemory]:
    """Of each role of each stage; empty where the model's shape is not known."""
    base = base_model(recipe.base)
    if base is None:
        return []
    num_bytes = device_bytes(recipe.resources)
    return [
        role
        for stage in plan
        for role in (*roles_of(stage, base, num_bytes), *served_memory(recipe, stage))
    ]


def memory_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Devices that are too few or too small, each with the smallest change that helps."""
    devices = stated_devices(recipe.resources)
    if devices is not None:
        yield from placement_problems(recipe.resources, plan, devices)
    if device_bytes(recipe.resources) is None:
        return
    stages = {stage.name: stage for stage in plan}
    for role in planned_memory(recipe, plan):
        num_bytes = device_bytes(recipe.resources, role.device) or 0
        if role.total > num_bytes:
            change = _change(recipe, role, stages[role.stage], num_bytes, devices)
            beside = f" ({role.beside / GB:.1f} of its other side)" if role.beside else ""
            yield (
                f"stage {role.stage}: its {role.role} needs {role.total / GB:.1f} GB a device"
                f"{beside}, and a device holds {num_bytes / GB:.1f}:"
                f" {_advice(change, role, recipe)}"
            )


def memory_cautions(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Where figures rest on a guess."""
    served = {name: role for stage in plan for name, role in stage.roles.items()}
    for name, role in served.items():
        if role_model(recipe, role) is None:
            yield (
                f"role {name}: the shape of its model {role.model} is not known here, so no memory"
                " was computed: whether it fits is seen when its servers start"
            )
    if device_bytes(recipe.resources) is None:
        longest = {stage.name: longest_sequence(stage) for stage in plan}
        roles = planned_memory(recipe, plan)
        together = side_by_side(plan, recipe.resources, roles)
        yield from machine_cautions(roles, machine_bytes(), longest, together)
    elif recipe.resources.devices is None:
        yield from host_cautions(planned_memory(recipe, plan), machine_bytes(), len(gpu_sizes()))
    base = base_model(recipe.base)
    if base is None:
        yield (
            "base: its config.json is out of reach, so no memory was computed: whether the stages"
            " fit is seen when they start"
        )
    elif base.known_by_name:
        yield (
            f"base: its config.json is out of reach; memory was computed for {base.known_by_name},"
            " as its folder is called"
        )


def _change(
    recipe: Recipe,
    role: RoleMemory,
    stage: PlannedStage,
    num_bytes: int,
    devices: PlannedDevices | None,
) -> Change | None:
    per_host, free = len(gpu_sizes()), role.num_devices
    if devices is not None and role.role in stage.roles:
        per_host, free = devices_for(recipe.resources, role.device)
    elif devices is not None:
        others = 0 if stage.resources.share else devices_of(stage) - role.num_devices
        per_host, free = devices.per_host, devices.num - others
    room = Room(num_bytes - role.beside, per_host, free, longest_sequence(stage))
    if isinstance(role.needs, TrainerNeeds):
        return trainer_change(role.size, role.needs, room)
    return server_change(role.size, role.needs, room, role.num_devices // role.needs.tp)


def _advice(change: Change | None, role: RoleMemory, recipe: Recipe) -> str:
    if change is None:
        return "nothing was found that fits; state more or larger resources.devices"
    ranks = recipe.resources.trainer_ranks
    more = ""
    if isinstance(role.needs, TrainerNeeds) and change.num_devices > ranks:
        more = f" (and resources.trainer_ranks: at least {change.num_devices})"
    return f"{change.text} fits ({(change.num_bytes + role.beside) / GB:.1f} GB){more}"
