"""Looks after the stack and this home: `tributary up`, `down`, `status`, `doctor` and `clean`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from flows.command.app import CommandConsole, print_json
from flows.page.prefect_app import RAY_PAGE
from flows.running.records import damaged_entries, run_entries
from infra import stack
from infra.access import is_loopback, key_path
from infra.errors import InputError
from infra.guard import login_link
from infra.home import home
from infra.stack.database import database, free_bytes, give_back
from infra.stack.services import DAY_S, kept_days
from infra.tracking.old_curves import thin_curves
from infra.tracking.pages import front_page


def join_stack(head: str, console: CommandConsole) -> int:
    """Let this host work for the stack whose Ray head is at `head`."""
    stack.up(lambda text: console.print(text, markup=False), join=head)
    console.print(f"this host works for the stack of {head}", markup=False)
    return 0


def start_stack(concurrent_runs: int | None, console: CommandConsole) -> int:
    """`concurrent_runs`: how many runs the work pool starts at once, 0 for any number; None leaves
    it as it is."""
    from flows.checks.store_checks import require_variables
    from flows.page.form import form_url, renew_lists
    from flows.running.prefect_api import PrefectApi
    from infra.tracking.spool import deliver_spool

    require_variables()
    started = stack.up(lambda text: console.print(text, markup=False))
    api = PrefectApi(started.prefect_api)
    renew_lists(api)
    if concurrent_runs is not None:
        body = {"concurrency_limit": concurrent_runs or None}
        api.call("PATCH", f"/work_pools/{stack.WORK_POOL}", body)
    sent, refused = deliver_spool(started.mlflow_uri)
    if sent:
        console.print(f"sent MLflow {sent} entries that waited while it was down")
    if refused:
        console.print(refused, markup=False, soft_wrap=True)
    _show_links(started, console)
    form = form_url(api, started.prefect_ui, "post-train")
    if form:
        console.print(f"Start a run: {login_link(form)}", markup=False, soft_wrap=True)
    return 0


def stop_stack(console: CommandConsole) -> int:
    stack.down()
    console.print("the local stack is down.")
    return 0


def show_status(json: bool, console: CommandConsole) -> int:
    """Exit code 1 when a part is down, so that scripts can ask."""
    found = stack.load_stack()
    parts = stack.status() if found else []
    if json:
        rows = [{"name": p.name, "answers": p.answers, "url": p.url} for p in parts]
        shown = {"up": found is not None, "parts": rows, "database": "", "head": "", "hosts": []}
        if found:
            hosts = [asdict(host) for host in stack.cluster_hosts(found)]
            shown |= {"database": found.database, "head": found.ray_address, "hosts": hosts}
        print_json(shown)
    elif found is None:
        console.say("the local stack is down; start it with `tributary up`")
    else:
        _show_parts(found, parts, console)
    return 0 if found and all(part.answers for part in parts) else 1


def _show_parts(
    found: stack.Stack, parts: Sequence[stack.ServiceState], console: CommandConsole
) -> None:
    table = Table("part", "state", "where")
    for part in parts:
        table.add_row(part.name, "up" if part.answers else "[red]down[/]", part.url)
    console.print(table)
    if found.head:
        console.say(f"this host has joined the stack of {found.head}")
        return
    _show_hosts(stack.cluster_hosts(found), console)
    console.say("open in a browser (each link works once, for twelve hours):")
    _show_links(found, console)
    console.say(f"programs send the key in {key_path()}")
    if not is_loopback(found.host):
        console.say(f"other hosts join with `tributary up --join {found.ray_address}`")
        console.say(f"they listen on {found.host}")
    if found.database:
        console.say(f"records of Prefect and MLflow: {found.database}")


def _show_hosts(hosts: Sequence[stack.HostState], console: CommandConsole) -> None:
    """Nothing where the stack has one host."""
    if len(hosts) < 2:
        return
    table = Table("host", "state", "GPUs", "memory free")
    for host in hosts:
        state = "up" if host.is_alive else "[red]lost[/]"
        free = f"{host.free_gib:.1f} GiB" if host.is_alive else ""
        head = ", head" if host.is_head else ""
        table.add_row(f"{host.address} ({host.name}{head})", state, str(host.gpus), free)
    console.print(table)


def keep_secret(block: str, variables: Sequence[str], console: CommandConsole) -> int:
    from flows.running.open import running_stack
    from flows.running.secrets import save_secrets

    save_secrets(running_stack(), block, variables)
    console.print(f"Prefect's Secret block {block} holds {', '.join(variables)}", markup=False)
    return 0


def clean_up() -> list[stack.Leftover]:
    """Remove what a crash left in this home; -> what that was."""
    return list(stack.clean())


def show_doctor(
    removed: Sequence[stack.Leftover] | None, json: bool, console: CommandConsole
) -> int:
    """`removed`: what was cleaned before; None if nothing was to be."""
    checks = [*stack.doctor(), _runs()]
    if json:
        cleaned = [{"path": str(each.path), "what": each.what} for each in removed or ()]
        print_json({"checks": [asdict(check) for check in checks], "removed": cleaned})
        return 0 if all(check.ok for check in checks) else 1
    for leftover in removed or ():
        console.say(f"removed {leftover.path}: {leftover.what}")
    if removed is not None and not removed:
        console.print("a crash left nothing behind.")
    for check in checks:
        good = "[yellow]warning[/]" if check.warns else "[green]ok[/]"
        console.print(f"{good if check.ok else '[red]missing[/]'} {check.name}: {check.detail}")
        if not check.ok:
            console.print(f"   repair with: {check.repair}", markup=False)
    return 0 if all(check.ok for check in checks) else 1


def _runs() -> stack.Check:
    whole, damaged = len(run_entries()), damaged_entries()
    if not damaged:
        return stack.Check("runs", True, f"{whole} on record", "")
    why = "; ".join(map(str, damaged.values()))
    told = f"{len(damaged)} of {whole + len(damaged)} cannot be read: {why}"
    return stack.Check("runs", True, told, "", warns=True)


def _show_links(found: stack.Stack, console: CommandConsole) -> None:
    """Each logs a browser in, once."""
    for title, url in (
        ("Prefect", found.prefect_ui),
        ("MLflow", front_page(found.mlflow_uri)),
        ("Ray", found.prefect_ui + RAY_PAGE),
    ):
        console.print(f"{title}: {login_link(url)}", markup=False, soft_wrap=True)


def clean_records(days: int | None, yes: bool, json: bool, console: CommandConsole) -> int:
    """Show what could go, and remove it if the person said so; -> exit code."""
    if days is not None and days < 1:
        raise InputError(f"--days {days}: give at least one day")
    days = kept_days() if days is None else days
    before = time.time() - days * DAY_S
    place = database() or home() / "mlflow" / "mlflow.db"
    curves = thin_curves(place, int(before * 1000), dry=not yes)
    logs = list(_old_logs(before))
    size = sum(path.stat().st_size for path in logs)
    files = [home() / "mlflow" / "mlflow.db", home() / "prefect" / "prefect.db"]
    free = {path: left for path in files if (left := free_bytes(path))}
    kept_open = [path.name for path in free if yes and not give_back(path)]
    if yes:
        for path in logs:
            path.unlink(missing_ok=True)
    if json:
        told = {"curves": asdict(curves) | {"bytes": curves.bytes}, "deleted": yes}
        told |= {"logs": {"files": len(logs), "bytes": size}, "days": days}
        print_json(told | {"free": sum(free.values()), "kept_open": kept_open})
        return 0
    gone = "removed" if yes else "could go"
    for line in (
        f"curves in MLflow of {curves.runs} runs that ended more than {days} days ago:"
        f" {curves.points:,} points, {curves.bytes / 1e6:.1f} MB {gone}",
        f"logs of as long ago: {len(logs)} files, {size / 1e6:.1f} MB {gone}",
        f"room that removed rows left in the databases: {sum(free.values()) / 1e6:.1f} MB {gone}",
        *(f"{name} keeps its size: it is in use, or the disk is full" for name in kept_open),
        *([] if yes else ["Nothing was deleted; --yes deletes it."]),
    ):
        console.say(line)
    return 0


def _old_logs(before: float) -> Iterator[Path]:
    """That nobody wrote to since."""
    for path in sorted((home() / "logs").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_mtime < before:
            yield path
