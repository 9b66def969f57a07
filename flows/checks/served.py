"""Checks of the models that rewards ask: options of their servers, resources, kinds of GPU."""

from __future__ import annotations

from collections.abc import Iterator

from engines.sglang.options import check_options, check_parallel
from flows.explain import nearest
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.errors import InputError
from tasks.served.roles import ServedRole
from tasks.stage import RoleResources


def served_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    for stage in plan:
        for name, role in stage.roles.items():
            yield from _of_role(recipe, stage, role, stage.resources.of_role(name))
    yield from _unknown_roles(recipe, plan)


def inexact_roles(stage: PlannedStage) -> Iterator[str]:
    """Why a stage's served rewards may not give the same bits in any batch."""
    for name, role in stage.roles.items():
        if role.reads_outputs:
            yield (
                f"stage {stage.name}: what role {name} computes of a prompt (choices, or outputs of"
                " a head) was not tested to be batch-invariant"
            )


def _of_role(
    recipe: Recipe, stage: PlannedStage, role: ServedRole, resources: RoleResources
) -> Iterator[str]:
    where = f"stage {stage.name}: role {role.name}: served."
    try:
        check_options(role.fleet.sglang, is_role=True)
        check_parallel(role.fleet.sglang, resources.tp_per_server)
    except InputError as error:
        yield f"{where}{error}"
    if role.fleet.external:
        yield (
            f"{where}fleet.external: servers that are not ours would get the weights of `model`;"
            " leave it out: servers of its own are started"
        )
    stated = recipe.resources.devices
    if resources.device and stated is not None:
        kinds = [each.kind for each in (stated, *recipe.resources.other_devices) if each.kind]
        if resources.device not in kinds:
            yield (
                f"stage {stage.name}: resources: roles.{role.name}.device is {resources.device!r},"
                f" and resources name {', '.join(kinds) or 'no kind'}: write `kind` in"
                " resources.devices or other_devices, or change it"
            )


def _unknown_roles(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Resources of roles that nothing has; those of `default` may be of any stage."""
    every = dict.fromkeys(name for stage in plan for name in stage.roles)
    for name in recipe.resources.default.roles:
        if name not in every:
            yield f"resources.default.roles.{name}: {_no_role(name, list(every))}"
    for stage in plan:
        named = recipe.resources.stages.get(stage.name)
        for name in named.roles if named is not None else ():
            if name not in stage.roles:
                at = f"resources.stages.{stage.name}.roles.{name}"
                yield f"{at}: {_no_role(name, list(stage.roles))}"


def _no_role(name: str, roles: list[str]) -> str:
    known = f"roles are {', '.join(roles)}" if roles else "no reward asks a served model"
    return f"no such role; {known}{nearest(name, roles)}"
