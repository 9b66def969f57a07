"""What each role of a plan holds on each of its devices, and what its stages take of the store,
as `tributary check` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from flows.checks.kept_bytes import KeptBytes
from flows.checks.memory.roles import RoleMemory, parts_of

PARTS = (
    "weights", "gradients", "optimizer", "frozen models", "activations", "KV cache", "runtime",
    "other side",
)  # fmt: skip
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def memory_table(roles: Sequence[RoleMemory]) -> Table:
    """Roles that need the same are one row."""
    table = Table("stages", "role", "devices", *PARTS, "a device", "host, a rank", title="memory")
    rows: dict[tuple[str, ...], list[str]] = {}
    for role in roles:
        parts = parts_of(role)
        sizes = [size_text(parts[name]) if parts.get(name) else "" for name in PARTS]
        if role.filled:
            sizes[PARTS.index("KV cache")] += f", {role.cached_tokens:,} tokens"
        host = size_text(role.host_bytes) if role.host_bytes else ""
        total = size_text(role.total + role.filled)
        row = (role.role, str(role.num_devices), *sizes, total, host)
        rows.setdefault(row, []).append(role.stage)
    for row, stages in rows.items():
        table.add_row(", ".join(stages), *row)
    return table


def memory_json(roles: Sequence[RoleMemory]) -> list[dict[str, Any]]:
    """In bytes, on each device; `host`: each rank's in its host's memory."""
    return [
        {
            "stage": role.stage,
            "role": role.role,
            "devices": role.num_devices,
            "parts": dict(parts_of(role)),
            "total": role.total + role.filled,
            "cached_tokens": role.cached_tokens,
            "host": role.host_bytes,
        }
        for role in roles
    ]


def kept_table(kept: Sequence[KeptBytes]) -> Table:
    """What stages will take of the store and of MLflow, at most."""
    table = Table(
        "stage", "checkpoints, until it is done", "model", "rollouts", "curves in MLflow",
        title="room that is needed, at most",
    )  # fmt: skip
    for each in kept:
        sizes = (each.checkpoints, each.model, each.rollouts, each.mlflow)
        table.add_row(each.stage, *map(size_text, sizes))
    return table


def size_text(num_bytes: int) -> str:
    """Example: 29491273728 -> "29.5 GB"."""
    for unit, name in _UNITS:
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"
