"""What the models that rewards ask need of the devices, beside what a stage trains and samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flows.checks.memory.base_model import BaseModel, base_model, folder_model
from flows.checks.memory.planned_devices import device_bytes
from flows.checks.memory.roles import RoleMemory, server_needs
from flows.plan import PlannedStage
from flows.recipe import Recipe
from tasks.served.named import is_stage
from tasks.served.roles import ServedRole


def served_memory(recipe: Recipe, stage: PlannedStage) -> Iterator[RoleMemory]:
    """Of each role whose model's shape is known."""
    for name, role in stage.roles.items():
        model = role_model(recipe, role)
        if model is None:
            continue
        resources = stage.resources.of_role(name)
        num_bytes = device_bytes(recipe.resources, resources.device)
        needs = server_needs(role.fleet, model, resources.tp_per_server, num_bytes)
        # A head in place of the projection to the vocabulary is of no size.
        size = replace(model.size, is_tied=True) if role.has_head else model.size
        num = resources.servers * resources.tp_per_server
        yield RoleMemory(stage.name, name, size, needs, num, device=resources.device)


def role_model(recipe: Recipe, role: ServedRole) -> BaseModel | None:
    """None of a model of which nothing is known. All that a recipe trains has its base's shape."""
    return base_model(recipe.base) if is_stage(role.model) else folder_model(role.model)
