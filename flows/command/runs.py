"""`tributary runs`: what this home has run, and how it went."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.command.output import print_json
from flows.running.records import RunEntry, RunRecord, damaged_entries, run_entries, store_of
from infra.config import Config
from infra.errors import DamagedRecord, InputError, TributaryError


class ListedRun(Config):
    """One line of the list."""

    run: str
    recipe: str
    state: str
    """`gone`: its store does not have it any more; `unknown`: its store is out of reach; `damaged`:
    its record cannot be read"""
    created: float
    """Unix time"""
    seconds: float
    """wall time, also over resumes"""
    fault: str = ""
    """why its record cannot be read"""


def show_runs(limit: int, json: bool, console: Console) -> int:
    if limit < 1:
        raise InputError(f"--limit {limit}: how many runs to show, from 1")
    whole = [_listed(entry) for entry in run_entries()[:limit]]
    listed = [*whole, *(_damaged(name, str(why)) for name, why in damaged_entries().items())]
    if json:
        print_json(listed)
        return 0
    if not listed:
        console.print("no runs yet; start one with `tributary run RECIPE`", markup=False)
        return 0
    console.print(_table(listed))
    damaged = [run for run in listed if run.state == "damaged"]
    if damaged:
        console.print(f"{len(damaged)} of {len(listed)} runs cannot be read:", highlight=False)
    for run in damaged:
        console.print(f"  {run.run}: {run.fault}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _listed(entry: RunEntry) -> ListedRun:
    state, seconds, fault = "unknown", 0.0, ""
    try:
        record = RunRecord(store_of(entry.storage), entry.run)
        now = record.state()
        state, seconds = now.state if record.exists else "gone", now.seconds_at(time.time())
    except DamagedRecord as error:
        state, fault = "damaged", str(error)
    except TributaryError:  # one store out of reach hides no other's runs
        pass
    return ListedRun(
        run=entry.run, recipe=entry.recipe, state=state, created=entry.created, seconds=seconds,
        fault=fault,
    )  # fmt: skip


def _damaged(run: str, fault: str) -> ListedRun:
    """A run of which this home's entry cannot be read."""
    return ListedRun(run=run, recipe="", state="damaged", created=0.0, seconds=0.0, fault=fault)


def _table(listed: Sequence[ListedRun]) -> Table:
    table = Table(box=None, pad_edge=False)
    # An id is there to be copied: other columns give way to it.
    table.add_column("run", no_wrap=True, min_width=max(len(run.run) for run in listed))
    for header in ("recipe", "state", "started (UTC)", "seconds"):
        table.add_column(header)
    for run in listed:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.created)) if run.created else ""
        table.add_row(escape(run.run), escape(run.recipe), run.state, when, f"{run.seconds:.0f}")
    return table
