"""Whether what a stage's processes take of a machine without GPUs leaves room beside them."""

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

_SHARE = 0.6
"""of the machine's memory that one stage may take: the stack takes some, other stages do, and Ray
ends processes when nearly all of it is taken"""
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


def machine_cautions(
    roles: Sequence[RoleMemory], there: int, longest: Mapping[str, int] = MappingProxyType({})
) -> Iterator[str]:
    """Stages that take most of the machine, each with what to set; `there`: its bytes, `longest`:
    the tokens of each stage's longest sequence, which is a micro-batch by itself."""
    for stage in dict.fromkeys(role.stage for role in roles):
        own = [role for role in roles if role.stage == stage]
        total = _total(own)
        if total <= there * _SHARE:
            continue
        advice = _advice(own, there, longest.get(stage, 0))
        parts = " and ".join(f"{r.role} {r.total * r.num_devices / GB:.1f} GB" for r in own)
        yield (
            f"stage {stage}: it needs about {total / GB:.1f} GB ({parts}), and this machine has"
            f" {there / GB:.1f} GB for everything that runs: {advice}"
        )


def _total(roles: Sequence[RoleMemory]) -> int:
    return sum(role.total * role.num_devices for role in roles)


def _advice(roles: Sequence[RoleMemory], there: int, longest: int) -> str:
    """The largest micro-batch with which the stage takes no more than its share."""
    trained = [(role, role.needs) for role in roles if isinstance(role.needs, TrainerNeeds)]
    rest = sum(role.total * role.num_devices for role in roles) - sum(
        role.total * role.num_devices for role, _ in trained
    )
    tokens = max((needs.tokens for _, needs in trained), default=0)
    while (tokens := tokens // 2) >= max(_FEWEST_TOKENS, longest):
        smaller = sum(
            trainer_memory(role.size, replace(needs, tokens=min(tokens, needs.tokens))).total
            * role.num_devices
            for role, needs in trained
        )
        if smaller + rest <= there * _SHARE:
            return (
                f"with trainer.micro_batch_tokens: {tokens} it needs about"
                f" {(smaller + rest) / GB:.1f} GB, and the result stays the same"
            )
    served = "lower fleet.max_total_tokens, or " if len(trained) < len(roles) else ""
    return f"{served}use a smaller model, shorter sequences or a machine with more memory"
