"""Finds whether ranks and servers have places on the stated devices, and whether a machine
without GPUs has room for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psutil

from engines.memory.trainer_memory import TrainerNeeds, trainer_memory
from flows.checks.memory.roles import RoleMemory
from flows.plan import PlannedStage
from infra.cuda import gpu_sizes
from tasks.stage import Devices, Resources

GB = 10**9
STACK_BYTES = 3 * GB
"""what Prefect, Ray, MLflow and the processes of a stage take beside its ranks and servers, as it
was measured with a model of 135 million weights"""
_SHARE = 0.75
"""of the machine's memory that may be taken: ranks took up to a fifth more than is computed, and
Ray ends processes when nearly all of it is taken"""
_FEWEST_TOKENS = 256
_CROWDED = 4
"""ranks or servers a core from which a plan looks like a mistake"""
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def device_bytes(resources: Resources, kind: str = "") -> int | None:
    """Return the bytes of each device, or of each of a kind; None where there are only CPUs, which
    need not be shared out."""
    for other in resources.other_devices:
        if kind and other.kind == kind:
            return round(other.memory_gb * GB)
    if resources.devices is not None:
        return round(resources.devices.memory_gb * GB)
    return min(gpu_sizes(), default=None)


def placement_problems(
    resources: Resources, plan: list[PlannedStage], devices: Devices
) -> Iterator[str]:
    """Yield each problem as `field: what it needs; what there is`."""
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
    """Return how many devices a role that wants this kind finds on a host, and on all."""
    stated = [d for d in (resources.devices, *resources.other_devices) if d is not None]
    of_kind = next((d for d in stated if kind and d.kind == kind), stated[0])
    return of_kind.per_host, of_kind.num


def _role_problems(resources: Resources, stage: PlannedStage) -> Iterator[str]:
    """Yield the problems of roles that want a kind of device of their own, and of groups that lie
    on one host."""
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
    """Count the ranks of its trainer and its critic."""
    ranks = stage.resources.trainer.world_size if stage.spec.trained_roles else 0
    return ranks + (stage.critic.world_size if stage.critic is not None else 0)


def _server_devices(stage: PlannedStage) -> int:
    if stage.spec.fleet is None or stage.spec.fleet.external:
        return 0
    return stage.resources.servers * stage.resources.tp_per_server


def _pool(resources: Resources, plan: list[PlannedStage], devices: Devices) -> Iterator[str]:
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


def machine_bytes() -> int:
    """Return what this machine has, or the container that we are in may use of it."""
    found = psutil.virtual_memory().total
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # not there, or `max`
            found = min(found, int(file.read_text()))
    return found


def side_by_side(
    plan: Sequence[PlannedStage], resources: Resources, roles: Sequence[RoleMemory]
) -> list[str]:
    """Stages that may run at once and need most together. To each stage the largest ones are added
    that wait for none of the others, and find ranks and servers free."""
    before = _all_before(plan)
    needs = {stage.name: _total(_of_stages(roles, [stage.name])) for stage in plan}
    largest_first = sorted(plan, key=lambda stage: -needs[stage.name])

    def grown(stage: PlannedStage) -> list[PlannedStage]:
        chosen = [stage]
        for other in largest_first:
            waits = any(
                a.name in before[b.name] for e in chosen for a, b in ((e, other), (other, e))
            )
            is_new = needs[other.name] and other not in chosen and not waits
            if is_new and _have_room([*chosen, other], resources):
                chosen.append(other)
        return chosen

    sets = [[stage.name for stage in grown(stage)] for stage in plan]
    return max(sets, key=lambda names: sum(needs[name] for name in names), default=[])


def _have_room(stages: Sequence[PlannedStage], resources: Resources) -> bool:
    ranks = sum(stage.resources.trainer.world_size for stage in stages if stage.spec.trainer)
    servers = sum(stage.resources.servers for stage in stages if stage.spec.fleet)
    return (
        len(stages) <= resources.concurrent_stages
        and ranks <= resources.trainer_ranks
        and servers <= resources.servers
    )


def _all_before(plan: Sequence[PlannedStage]) -> Mapping[str, frozenset[str]]:
    """For each stage all those that it waits for. A plan names them first."""
    before: dict[str, frozenset[str]] = {}
    for stage in plan:
        inputs = set(stage.inputs.values())
        before[stage.name] = frozenset(inputs).union(*(before.get(each, ()) for each in inputs))
    return before


def machine_cautions(
    roles: Sequence[RoleMemory],
    there: int,
    longest: Mapping[str, int] = MappingProxyType({}),
    together: Sequence[str] = (),
) -> Iterator[str]:
    """Stages that take most of the machine, each with what to set, and those that do so together
    where none does alone; `there`: its bytes, `longest`: the tokens of each stage's longest
    sequence, which is a micro-batch by itself."""
    stages = list(dict.fromkeys(role.stage for role in roles))
    alone = [stage for stage in stages if not fits(_of_stages(roles, [stage]), there)]
    for stage in alone:
        said = _said(_of_stages(roles, [stage]), there, longest.get(stage, 0))
        yield f"stage {stage} needs {said}"
    if alone or fits(beside := _of_stages(roles, together), there):
        return
    most = max(longest.get(stage, 0) for stage in together)
    yield (
        f"stages {' and '.join(together)} may run side by side and need"
        f" {_said(beside, there, most)}; or set resources.concurrent_stages: 1"
    )


def core_cautions(plan: Sequence[PlannedStage]) -> Iterator[str]:
    """The stage with most ranks or servers, if those are many more than this machine, without a
    GPU, has cores."""
    cores = len(os.sched_getaffinity(0))
    busy = {s.name: (ranks_of(s), _server_devices(s) + _role_devices(s, "")) for s in plan}
    stage = max(busy, key=lambda name: max(busy[name]), default="")
    if stage and max(busy[stage]) > _CROWDED * cores:
        ranks, servers = busy[stage]
        yield (
            f"stage {stage}: ranks: {ranks}, servers: {servers}, and this machine has {cores}"
            " cores, on which they wait for one another; more than one per core is no faster"
        )


def host_cautions(roles: Sequence[RoleMemory], there: int, per_host: int) -> Iterator[str]:
    """Stages whose ranks on this host's `per_host` GPUs take most of its memory, `there` bytes: by
    what waits there while they sleep, by a checkpoint's copy and by what is offloaded."""
    for stage in dict.fromkeys(role.stage for role in roles):
        ranks = [role for role in _of_stages(roles, [stage]) if role.host_bytes]
        needed = sum(role.host_bytes * min(role.num_devices, per_host) for role in ranks)
        if needed + STACK_BYTES <= there * _SHARE:
            continue
        asleep = any(role.sleeps for role in ranks)
        yield (
            f"stage {stage}: its ranks take up to {needed / GB:.1f} GB of this host's memory, which"
            f" is {there / GB:.1f} GB: {'weights and optimizer while they sleep, and ' * asleep}"
            "a checkpoint's copy until it is written. Use more ranks on more hosts"
            f"{', `share: false`' * asleep}, or a smaller model"
        )


def _said(roles: Sequence[RoleMemory], there: int, longest: int) -> str:
    parts = " and ".join(f"{r.role} {r.total * r.num_devices / GB:.1f} GB" for r in roles)
    total = _total(roles) + STACK_BYTES
    return (
        f"up to {total / GB:.1f} GB ({parts} and the stack {STACK_BYTES / GB:.1f} GB), and"
        f" this machine has {there / GB:.1f} GB for everything that runs:"
        f" {_advice(roles, there, longest)}"
    )


def _of_stages(roles: Sequence[RoleMemory], stages: Sequence[str]) -> list[RoleMemory]:
    return [role for role in roles if role.stage in stages]


def fits(roles: Sequence[RoleMemory], there: int, share: float = _SHARE) -> bool:
    """Return whether they and the stack take no more than this share of a machine's bytes."""
    return not roles or _total(roles) + STACK_BYTES <= there * share


def _total(roles: Sequence[RoleMemory]) -> int:
    return sum(role.total * role.num_devices for role in roles)


def _advice(roles: Sequence[RoleMemory], there: int, longest: int) -> str:
    """The largest micro-batch with which the stage takes no more than its share."""
    trained = [(role, role.needs) for role in roles if isinstance(role.needs, TrainerNeeds)]
    rest = STACK_BYTES + _total(roles) - _total([role for role, _ in trained])
    tokens = max((needs.tokens for _, needs in trained), default=0)
    while (tokens := tokens // 2) >= max(_FEWEST_TOKENS, longest):
        smaller = sum(
            trainer_memory(role.size, replace(needs, tokens=min(tokens, needs.tokens))).total
            * role.num_devices
            for role, needs in trained
        )
        if smaller + rest <= there * _SHARE:
            return (
                f"with trainer.micro_batch_tokens: {tokens} that is up to"
                f" {(smaller + rest) / GB:.1f} GB, and results stay the same"
            )
    served = "lower fleet.max_total_tokens, or " if len(trained) < len(roles) else ""
    return f"{served}use a smaller model, shorter sequences or a machine with more memory"
