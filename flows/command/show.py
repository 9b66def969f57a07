"""Shows a recipe or a run: `tributary check` and `report`, and what a plan takes of devices and
store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engines.algorithms.combinations import describe
from flows.catalog import plan_of
from flows.checks.memory.roles import RoleMemory, parts_of
from flows.checks.store import KeptBytes
from flows.command.output import CommandConsole, print_json
from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.recipe import Recipe
from flows.reports.report import build_report
from flows.running.records import find_run
from infra.errors import TributaryError

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


def show_check(name: str, changes: list[str], json: bool, console: CommandConsole) -> int:
    from flows.checks.memory.fit import planned_memory
    from flows.checks.recipe import cautions, check_recipe, notes
    from flows.checks.servers import inexact
    from flows.checks.store import kept_bytes
    from flows.reasons import stage_reasons

    recipe = load_recipe(name, changes)
    plan = plan_of("post-train", recipe, {})
    check_recipe(recipe, plan, again=True)
    why: dict[str, list[str]] = {}
    with contextlib.suppress(TributaryError):
        why = stage_reasons(recipe, plan)
    reasons, warnings = list(inexact(recipe, plan)), list(cautions(recipe, plan))
    roles, kept = planned_memory(recipe, plan), kept_bytes(recipe, plan)
    if json:
        stages = [_described(stage, why.get(stage.name)) for stage in plan]
        checked = {"recipe": recipe, "stages": stages, "exact": not reasons}
        memory = memory_json(roles)
        print_json(
            {
                **checked,
                "memory": memory,
                "kept": [asdict(each) for each in kept],
                "inexact": reasons,
                "warnings": warnings,
                "notes": list(notes(recipe, plan)),
            }
        )
        return 0
    _show_recipe(recipe, plan, console)
    table = Table("stage", "kind", "inputs", "state", "trainer", "servers", title=recipe.name)
    for stage in plan:
        inputs = ", ".join(dict.fromkeys(stage.inputs.values()))
        state = _state(why.get(stage.name))
        row = (stage.name, stage.kind, inputs, state, _layout(stage), servers_of(stage))
        table.add_row(*map(escape, row))
    console.print(table)
    for caution in warnings:
        console.say(f"warning: {caution}")
    for note in notes(recipe, plan):
        console.say(note)
    _print_reasons(why, console)
    if older := _of_other_code(recipe, plan, why):
        console.say(
            f"made by other code of Tributary, all else being the same: {', '.join(older)};"
            f" `tributary run {name} --accept-code` takes them as they are"
        )
    if roles:
        console.print(memory_table(roles))
    if kept:
        console.print(kept_table(kept))
    promise = "bit-identical on hosts without a GPU" if not reasons else "close, not bit-identical"
    console.print(f"A resumed run ends {promise}.", highlight=False)
    for reason in reasons:
        console.say(f"  {reason}")
    return 0


def _show_recipe(recipe: Recipe, plan: list[PlannedStage], console: CommandConsole) -> None:
    """Resolved, and the full algorithm of each stage that has one."""
    text = yaml.safe_dump(recipe.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
    console.print(text, markup=False, highlight=False)
    for stage in plan:
        if stage.spec.policy is not None:
            console.say(f"{stage.name}: {describe(stage.spec.policy.algorithm)}")


def _described(stage: PlannedStage, why: list[str] | None) -> dict[str, Any]:
    """One stage of `check --json`. `cached` is null where the store or the base is out of reach."""
    policy = stage.spec.policy
    return {
        "name": stage.name,
        "kind": stage.kind,
        "inputs": dict(stage.inputs),
        "cached": None if why is None else not why,
        "why": why or [],
        "trainer": _layout(stage),
        "servers": servers_of(stage),
        "algorithm": "" if policy is None else describe(policy.algorithm),
    }


def _state(why: list[str] | None) -> str:
    """One line of the table; None where the store or the base is out of reach."""
    if why is None:
        return "unknown"
    if not why:
        return "cached"
    return f"to run: {why[0]}" + (f" (+{len(why) - 1})" if len(why) > 1 else "")


def _of_other_code(
    recipe: Recipe, plan: list[PlannedStage], why: dict[str, list[str]]
) -> list[str]:
    """The stages that an upgrade of Tributary alone makes run again; asks the store only where a
    stage is to run that ran before."""
    if all(lines in ([], ["never run before"]) for lines in why.values()):
        return []
    from flows.reasons import made_by_other_code

    with contextlib.suppress(TributaryError):
        return made_by_other_code(recipe, plan)
    return []


def _print_reasons(why: dict[str, list[str]], console: CommandConsole) -> None:
    """What does not fit into the table."""
    for name, lines in why.items():
        for line in lines if len(lines) > 1 else []:
            console.say(f"{name}: {line}")


def _layout(stage: PlannedStage) -> str:
    """Only the dimensions that are spread, e.g. `tp 2 x dp 4`."""
    if not stage.spec.trained_roles:
        return ""
    sizes = stage.resources.trainer.model_dump()
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "1 rank"


def servers_of(stage: PlannedStage) -> str:
    if stage.spec.fleet is None:
        return ""
    if stage.spec.fleet.external:
        return f"external: {', '.join(stage.spec.fleet.external)}"
    resources = stage.resources
    return f"{resources.servers} x tp {resources.tp_per_server}"


def show_report(run: str, json: bool, open_: bool, console: CommandConsole) -> int:
    from flows.command.live_table import show_end
    from flows.reports.page import write_page

    record = find_run(run)
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    report = build_report(record, plan)
    if json:
        print_json(report)
        return 0
    page = write_page(record, report, plan)
    show_end(record, plan, console)
    if open_:
        open_page(page, console)
    return 0


def open_page(page: Path, console: Console) -> None:
    """In the user's browser; where there is none, its address is all that can be given."""
    import webbrowser

    if not webbrowser.open(page.as_uri()):
        text = f"no browser was found on this machine; open {page.as_uri()}, or copy the file"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
