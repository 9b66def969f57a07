"""Whether what stages take of a machine without GPUs leaves room beside them and the stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psutil

from engines.memory.needs import TrainerNeeds
from engines.memory.trainer import trainer_memory
from flows.checks.memory.planned_devices import GB
from flows.checks.memory.roles import RoleMemory
from flows.plan import PlannedStage
from tasks.stage import Resources

STACK_BYTES = 3 * GB
"""what Prefect, Ray, MLflow and the processes of a stage take beside its ranks and servers, as it
was measured with a model of 135 million weights"""
_SHARE = 0.75
"""of the machine's memory that may be taken: ranks took up to a fifth more than is computed, and
Ray ends processes when nearly all of it is taken"""
_FEWEST_TOKENS = 256
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def machine_bytes() -> int:
    """What this machine has, or the container that we are in may use of it."""
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
    alone = [stage for stage in stages if not _fits(_of_stages(roles, [stage]), there)]
    for stage in alone:
        said = _said(_of_stages(roles, [stage]), there, longest.get(stage, 0))
        yield f"stage {stage} needs {said}"
    if alone or _fits(beside := _of_stages(roles, together), there):
        return
    most = max(longest.get(stage, 0) for stage in together)
    yield (
        f"stages {' and '.join(together)} may run side by side and need"
        f" {_said(beside, there, most)}; or set resources.concurrent_stages: 1"
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


def _fits(roles: Sequence[RoleMemory], there: int) -> bool:
    return not roles or _total(roles) + STACK_BYTES <= there * _SHARE


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
