"""Shows a recipe or a run: `tributary check` and `report`, and what a plan takes of devices and
store.
"""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from engines.algorithms.combinations import describe
from flows.catalog import plan_of
from flows.checks.memory.roles import RoleMemory, parts_of
from flows.checks.store_checks import KeptBytes
from flows.command.app import CommandConsole, duration, print_json
from flows.load import as_yaml, load_recipe
from flows.plan import PlannedStage
from flows.recipe import Recipe
from flows.reports.report import build_report
from flows.running.chosen_stages import ChosenStages
from flows.running.records import RunRecord, find_run, runs_of, store_of
from infra.errors import InputError, TributaryError

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
    """Return the roles' memory in bytes, on each device; `host`: each rank's in its host's
    memory."""
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
    """Return what stages will take of the store and of MLflow, at most."""
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


def show_check(
    name: str,
    changes: list[str],
    chosen: ChosenStages,
    full: bool,
    json: bool,
    console: CommandConsole,
) -> int:
    from flows.checks.memory.fit import size_notes
    from flows.checks.recipe_checks import cautions, check_recipe, notes, packing_notes
    from flows.checks.store_checks import require_variables

    require_variables()
    recipe = load_recipe(name, changes)
    plan = plan_of("post-train", recipe, chosen.arguments)
    check_recipe(recipe, plan, again=True)
    checked = _checked(recipe, plan)
    warnings, packed = list(cautions(recipe, plan)), list(packing_notes(recipe, plan))
    told = [*notes(recipe, plan), *packed]
    if json:
        stages = [_described(stage, checked) for stage in plan]
        print_json(
            {
                "recipe": recipe,
                "stages": stages,
                "exact": not checked.inexact,
                "memory": memory_json(checked.roles),
                "kept": [asdict(each) for each in checked.kept],
                "inexact": checked.inexact,
                "warnings": warnings,
                "notes": told,
            }
        )
        return 0
    if full:
        _show_recipe(recipe, plan, console)
    console.say(_outlook(recipe, plan, checked))
    console.print(_plan_table(plan, checked))
    for caution in warnings:
        console.say(f"warning: {caution}")
    if not full:  # there they are among the notes
        for said in (*size_notes(recipe, plan), *packed):
            console.say(said)
    if older := _of_other_code(recipe, plan, checked.why):
        console.say(
            f"made by other code of Tributary, all else being the same: {', '.join(older)};"
            f" `tributary run {name} --accept-code` takes them as they are"
        )
    if full:
        _show_rest(plan, checked, told, console)
    exact = (
        "bit-identical on hosts without a GPU"
        if not checked.inexact
        else "close, not bit-identical"
    )
    console.say(f"A resumed run ends {exact}.")
    if full:
        for reason in checked.inexact:
            console.say(f"  {reason}")
    else:
        console.say(
            "The resolved recipe, algorithms, every reason, memory by role and room by kind:"
            f" tributary check {name} --full"
        )
    return 0


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a plan stands for."""

    why: dict[str, list[str]]
    """by stage, why it is to run: nothing for a cached one; empty where the store or the base is
    out of reach"""
    unreached: str
    """why they are; else empty"""
    inexact: list[str]
    roles: list[RoleMemory]
    kept: list[KeptBytes]
    seconds: dict[str, float]
    """by stage, what it will take if it goes as it went before"""


def _checked(recipe: Recipe, plan: list[PlannedStage]) -> _Checked:
    from flows.checks.memory.fit import planned_memory
    from flows.checks.servers import inexact
    from flows.checks.store_checks import kept_bytes
    from flows.reasons import stage_reasons

    why: dict[str, list[str]] = {}
    unreached = ""
    try:
        why = stage_reasons(recipe, plan)
    except TributaryError as error:
        unreached = str(error)
    return _Checked(
        why,
        unreached,
        list(inexact(recipe, plan)),
        list(planned_memory(recipe, plan)),
        list(kept_bytes(recipe, plan)),
        _past_seconds(recipe, plan),
    )


_RUNS = 5
"""so many of a recipe's newest runs are asked how long a stage takes"""


def _past_seconds(recipe: Recipe, plan: Sequence[PlannedStage]) -> dict[str, float]:
    """Return what each stage took when this home last ran it to the end, for the steps that it is
    to do now."""
    found: dict[str, float] = {}
    with contextlib.suppress(TributaryError):  # a store out of reach
        for record in islice(runs_of(recipe.name, store_of(recipe.storage)), _RUNS):
            past = record.stages()
            for stage in plan:
                ran = past.get(stage.name)
                if stage.name in found or ran is None or ran.state != "completed" or not ran.mine:
                    continue
                longer = stage.steps / ran.total if stage.steps and ran.total else 1.0
                found[stage.name] = ran.seconds * longer
    return found


def _outlook(recipe: Recipe, plan: list[PlannedStage], checked: _Checked) -> str:
    """Return what a run would do, in one sentence."""
    if not checked.why:
        return (
            f"{recipe.name}: {len(plan)} stages; which would run is not known: {checked.unreached}"
        )
    waiting = [name for name, why in checked.why.items() if why]
    store, count = store_of(recipe.storage), f"{len(waiting)} of {len(plan)} stages are to run"
    if not any(runs_of(recipe.name, store)):
        return f"{recipe.name} never ran in {store.root}: {count}; its first run shows how long"
    said = f"{recipe.name}: {count}" + (
        ", the others are cached" if len(waiting) < len(plan) else ""
    )
    known = [checked.seconds[name] for name in waiting if name in checked.seconds]
    if known:
        of = "" if len(known) == len(waiting) else f", for {len(known)} of them"
        said += f"; at the pace of earlier runs {duration(sum(known))}, one after another{of}"
    return said


def _plan_table(plan: list[PlannedStage], checked: _Checked) -> Table:
    """Each stage with its state and what it takes."""
    table = Table("stage", "kind", "state", "trainer", "servers", "a device", "store, at most")
    if checked.seconds:
        table.add_column("as before")
    for stage in plan:
        device = [r.total + r.filled for r in checked.roles if r.stage == stage.name]
        kept = [k.checkpoints + k.model + k.rollouts for k in checked.kept if k.stage == stage.name]
        state = _state(checked.why.get(stage.name))
        row = (stage.name, stage.kind, state, _layout(stage), servers_of(stage))
        sizes = [size_text(max(sizes)) if sizes else "" for sizes in (device, kept)]
        took = [duration(checked.seconds.get(stage.name))] if checked.seconds else []
        table.add_row(*map(escape, row), *sizes, *took)
    return table


def _show_recipe(recipe: Recipe, plan: list[PlannedStage], console: CommandConsole) -> None:
    """Resolved, and the full algorithm of each stage that has one."""
    text = as_yaml(recipe.model_dump(mode="json", exclude_defaults=True))
    console.print(text, markup=False, highlight=False)
    for stage in plan:
        if stage.spec.policy is not None:
            console.say(f"{stage.name}: {describe(stage.spec.policy.algorithm)}")


def _show_rest(
    plan: list[PlannedStage], checked: _Checked, told: Sequence[str], console: CommandConsole
) -> None:
    """What `check` says only when it is asked for all."""
    for note in told:
        console.say(note)
    for stage in plan:
        if inputs := ", ".join(dict.fromkeys(stage.inputs.values())):
            console.say(f"{stage.name} is made from {inputs}")
    for name, lines in checked.why.items():  # the table shows a stage's first one
        for line in lines if len(lines) > 1 else []:
            console.say(f"{name}: {line}")
    if checked.roles:
        console.print(memory_table(checked.roles))
    if checked.kept:
        console.print(kept_table(checked.kept))


def _described(stage: PlannedStage, checked: _Checked) -> dict[str, Any]:
    """One stage of `check --json`. `cached` is null where the store or the base is out of reach."""
    policy, why = stage.spec.policy, checked.why.get(stage.name)
    return {
        "name": stage.name,
        "kind": stage.kind,
        "inputs": dict(stage.inputs),
        "cached": None if why is None else not why,
        "why": why or [],
        "seconds": checked.seconds.get(stage.name),
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


def _layout(stage: PlannedStage) -> str:
    """Only the dimensions that are spread, e.g. `tp 2 x dp 4`."""
    if not stage.spec.trained_roles:
        return ""
    sizes = stage.resources.trainer.model_dump()
    return (
        " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size and size > 1)
        or "1 rank"
    )


def servers_of(stage: PlannedStage) -> str:
    if stage.spec.fleet is None:
        return ""
    if stage.spec.fleet.external:
        return f"external: {', '.join(stage.spec.fleet.external)}"
    resources = stage.resources
    return f"{resources.servers} x tp {resources.tp_per_server}"


def show_report(run: str, json: bool, open_: bool, serve: bool, console: CommandConsole) -> int:
    from flows.command.live_table import show_end
    from flows.reports.page import write_page

    record = find_run(run)
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    if json and serve:
        raise InputError("--json prints the report once, --serve shows it as it grows: give one")
    if serve:
        return _serve(record, plan, open_, console)
    report = build_report(record, plan)
    if json:
        print_json(report)
        return 0
    page = write_page(record, report, plan)
    show_end(record, plan, console)
    if open_:
        open_page(page, console)
    return 0


def _serve(
    record: RunRecord, plan: Sequence[PlannedStage], open_: bool, console: CommandConsole
) -> int:
    from flows.reports.page import LivePage, serve_page

    def told(link: str) -> None:
        console.say(f"{record.run}, until Ctrl-C (the link works once): {link}")
        if open_:
            webbrowser.open(link)

    with contextlib.suppress(KeyboardInterrupt):
        serve_page(LivePage(record, plan), told)
    return 0


def open_page(page: Path, console: CommandConsole) -> None:
    """Open the page in the user's browser; where there is none, its address is all that can be
    given."""
    if not webbrowser.open(page.as_uri()):
        text = f"no browser was found on this machine; open {page.as_uri()}, or copy the file"
        console.say(text)
