"""Says what every role of a plan needs, which of it no device holds, and the smallest change
with which it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from engines.megatron.spec import MICRO_BATCH_TOKENS
from engines.memory.activations import Recompute
from engines.memory.model_size import ModelSize
from engines.memory.server_memory import ServerNeeds, server_memory
from engines.memory.trainer_memory import TrainerNeeds, trainer_memory
from engines.sglang.spec import CPU_TOKENS
from flows.checks.memory.machine import (
    GB,
    core_cautions,
    device_bytes,
    devices_for,
    devices_of,
    fits,
    host_cautions,
    machine_bytes,
    machine_cautions,
    placement_problems,
    side_by_side,
)
from flows.checks.memory.roles import (
    BaseModel,
    RoleMemory,
    base_model,
    folder_model,
    longest_sequence,
    roles_of,
    server_needs,
)
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.config import Config
from infra.cuda import gpu_sizes
from tasks.served.served_roles import ServedRole, is_stage
from tasks.stage import Devices

_WHOLE_LAYERS = Recompute(method="uniform", num_layers=1)
_RECOMPUTE = (
    "trainer.megatron: {recompute_granularity: full, recompute_method: uniform,"
    " recompute_num_layers: 1}"
)
_FEWEST_TOKENS = 1024
"""in a micro-batch: with fewer, matrix products are slow"""
_FEWEST = 512
"""tokens in a micro-batch that is chosen for a machine"""
_CHOSEN_SHARE = 0.5
"""of a machine without GPUs that a stage may take where sizes are chosen: other things run there,
and a larger micro-batch is hardly faster"""
_MOST_FACTOR = 16
_MOST_CHANGES = 3
_ROUND = 1024
"""tokens"""
_Step = tuple[str, Callable[[TrainerNeeds], TrainerNeeds]]


@dataclass(frozen=True, slots=True)
class Room:
    """What a role may take."""

    device_bytes: int
    per_host: int
    devices: int
    """of all hosts, without those of the stage's other roles"""
    longest: int = 0
    """tokens of the longest sequence"""


@dataclass(frozen=True, slots=True)
class Change:
    text: str
    num_bytes: int
    """on each device, after it"""
    num_devices: int


def trainer_change(size: ModelSize, needs: TrainerNeeds, room: Room) -> Change | None:
    """Find the change of as few settings as possible, then with as few devices as possible, then in
    the order of `_steps`; None where nothing fits."""
    steps = _steps(size, needs, room)
    for count in range(1, _MOST_CHANGES + 1):
        found = [
            change
            for names in combinations(steps, count)
            for chosen in product(*(steps[name] for name in names))
            if (change := _tried(size, needs, room, chosen)) is not None
        ]
        if found:
            return min(found, key=lambda change: change.num_devices)
    return None


def _tried(
    size: ModelSize, needs: TrainerNeeds, room: Room, steps: Sequence[_Step]
) -> Change | None:
    for _, step in steps:
        needs = step(needs)
    total = trainer_memory(size, needs).total
    if total > room.device_bytes or needs.layout.world_size > room.devices:
        return None
    return Change(", ".join(text for text, _ in steps), total, needs.layout.world_size)


def _steps(size: ModelSize, needs: TrainerNeeds, room: Room) -> Mapping[str, list[_Step]]:
    """By setting; each setting's nearest value first."""
    steps: dict[str, list[_Step]] = {}
    if not needs.recompute.method:
        steps["recompute"] = [(_RECOMPUTE, lambda n: replace(n, recompute=_WHOLE_LAYERS))]
    fewest = max(_FEWEST_TOKENS, -(-room.longest // needs.layout.cp))
    steps["tokens"] = [
        (
            f"trainer.micro_batch_tokens: {needs.tokens} -> {tokens}",
            lambda n, tokens=tokens: replace(n, tokens=tokens),
        )
        for factor in _doubled(_MOST_FACTOR)
        if (tokens := needs.tokens // factor) >= fewest
    ]
    for axis, now in (("tp", needs.layout.tp), ("pp", needs.layout.pp), ("dp", needs.layout.dp)):
        steps[axis] = [
            (f"resources: trainer.{axis}: {now} -> {now * factor}", _with_axis(axis, now * factor))
            for factor in _doubled(_MOST_FACTOR)
            if _divides(size, axis, now * factor, room.per_host)
        ]
    return steps


def _doubled(most: int) -> Iterator[int]:
    factor = 2
    while factor <= most:
        yield factor
        factor *= 2


def _with_axis(axis: str, value: int) -> Callable[[TrainerNeeds], TrainerNeeds]:
    return lambda needs: replace(needs, layout=needs.layout.model_copy(update={axis: value}))


def _divides(size: ModelSize, axis: str, value: int, per_host: int) -> bool:
    match axis:
        case "tp":
            return tp_fits(size, value, per_host)
        case "pp":
            return size.num_layers % value == 0
        case _:
            return True


def tp_fits(size: ModelSize, tp: int, per_host: int) -> bool:
    """Return whether a group of `tp` devices lies on one host and shares the model out evenly."""
    split = (size.queries // size.head_dim, size.keys // size.head_dim, size.ffn, size.vocab)
    return per_host % tp == 0 and all(part % tp == 0 for part in split)


def server_change(size: ModelSize, needs: ServerNeeds, room: Room, servers: int) -> Change | None:
    """Return a smaller cache if it still holds the longest sequence; else, more devices a
    server."""
    spare = room.device_bytes - server_memory(size, replace(needs, max_total_tokens=0)).total
    for tokens in _rounded_down(needs, spare, size):
        fewer = replace(needs, max_total_tokens=tokens)
        total = server_memory(size, fewer).total
        if total <= room.device_bytes and tokens >= needs.context_length:
            text = f"fleet.max_total_tokens: {needs.max_total_tokens} -> {tokens}"
            return Change(text, total, servers * needs.tp)
    for factor in _doubled(_MOST_FACTOR):
        wider = replace(needs, tp=needs.tp * factor)
        total = server_memory(size, wider).total
        is_room = total <= room.device_bytes and servers * wider.tp <= room.devices
        if is_room and room.per_host % wider.tp == 0:
            text = f"resources: tp_per_server: {needs.tp} -> {wider.tp}"
            return Change(text, total, servers * wider.tp)
    return None


def _rounded_down(needs: ServerNeeds, spare: int, size: ModelSize) -> Iterator[int]:
    """The largest cache that the spare bytes hold; the table of requests may ask for a bit less."""
    per_token = server_memory(size, replace(needs, max_total_tokens=1)).cache
    per_token -= server_memory(size, replace(needs, max_total_tokens=0)).cache
    most = min(spare // per_token, needs.max_total_tokens)
    for share in (1.0, 0.95, 0.9, 0.8):
        yield int(most * share) // _ROUND * _ROUND


def served_memory(recipe: Recipe, stage: PlannedStage) -> Iterator[RoleMemory]:
    """Yield the memory of each role whose model's shape is known."""
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
    """Describe a role's model; None where nothing is known of it. All that a recipe trains has its
    base's shape."""
    return base_model(recipe.base) if is_stage(role.model) else folder_model(role.model)


def planned_memory(recipe: Recipe, plan: list[PlannedStage]) -> list[RoleMemory]:
    """Return the memory of each role of each stage; empty where the model's shape is not known."""
    base = base_model(recipe.base)
    if base is None:
        return []
    return [role for stage in plan for role in _roles(recipe, sized(recipe, stage), base)]


def _roles(recipe: Recipe, stage: PlannedStage, base: BaseModel) -> list[RoleMemory]:
    own = roles_of(stage, base, device_bytes(recipe.resources))
    return [*own, *served_memory(recipe, stage)]


def sized(recipe: Recipe, stage: PlannedStage) -> PlannedStage:
    """The stage with the sizes that the recipe leaves open: the largest micro-batch, then the
    largest cache of a server without a GPU, with which it fits on its devices or takes its share of
    this machine. They change no result, so a run elsewhere finds this one's."""
    base = base_model(recipe.base)
    if base is None or stage.spec.trainer is None:
        return stage
    if _filled(stage.spec, micro_batch_tokens=1, max_total_tokens=1) is stage.spec:
        return stage
    longest = longest_sequence(stage)
    fleet = stage.spec.fleet
    shortest = (fleet.context_length or base.max_positions) if fleet is not None else CPU_TOKENS
    tried = stage
    for cached in (None, *_halved(CPU_TOKENS, shortest)):
        for tokens in (MICRO_BATCH_TOKENS, *_halved(MICRO_BATCH_TOKENS, max(_FEWEST, longest))):
            spec = _filled(stage.spec, micro_batch_tokens=tokens, max_total_tokens=cached)
            tried = replace(stage, spec=spec)
            if _has_room(recipe, _roles(recipe, tried, base)):
                return tried
        if device_bytes(recipe.resources) is not None:  # there a cache fills what is free
            break
    return tried


def chosen_sizes(recipe: Recipe, plan: Sequence[PlannedStage]) -> Mapping[str, Sequence[str]]:
    """Stages by what was chosen for them, where that is not what a larger machine would get."""
    found: dict[str, list[str]] = {}
    for stage in plan:
        trainer, fleet = sized(recipe, stage).spec.trainer, sized(recipe, stage).spec.fleet
        was, had = stage.spec.trainer, stage.spec.fleet
        if trainer and was and trainer != was and trainer.most_tokens < was.most_tokens:
            said = f"trainer.micro_batch_tokens: {trainer.most_tokens}"
            found.setdefault(said, []).append(stage.name)
        if fleet and fleet != had:
            found.setdefault(f"fleet.max_total_tokens: {fleet.max_total_tokens}", []).append(
                stage.name
            )
    return found


def size_notes(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Yield a sentence for each size that was chosen below its default."""
    where = "a device holds" if device_bytes(recipe.resources) else "this machine has"
    there = device_bytes(recipe.resources) or machine_bytes()
    for said, stages in chosen_sizes(recipe, plan).items():
        yield f"{said} for {', '.join(stages)}: chosen, as {where} {there / GB:.1f} GB"


def _halved(size: int, least: int) -> Iterator[int]:
    while (size := size // 2) >= least:
        yield size


def _filled(value: Any, **sizes: int | None) -> Any:
    """Settings with these fields where they are open, at any depth."""
    if not isinstance(value, Config):
        return value
    new: dict[str, Any] = {}
    for name in type(value).model_fields:
        was = getattr(value, name)
        now = sizes[name] if name in sizes and was is None else _filled(was, **sizes)
        if now is not was:
            new[name] = now
    return value.model_copy(update=new) if new else value


def _has_room(recipe: Recipe, roles: Sequence[RoleMemory]) -> bool:
    if device_bytes(recipe.resources) is None:
        return fits(roles, machine_bytes(), _CHOSEN_SHARE)
    return all(role.total <= (device_bytes(recipe.resources, role.device) or 0) for role in roles)


def memory_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Devices that are too few or too small, each with the smallest change that helps."""
    devices = recipe.resources.devices
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
    """Say where figures rest on a guess."""
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
        yield from core_cautions(plan)
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
    devices: Devices | None,
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
