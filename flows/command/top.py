"""`tributary top`: the stages that run now, of all runs of this home."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from flows.catalog import plan_of
from flows.command.app import CommandConsole, duration, print_json
from flows.command.show import servers_of
from flows.running.records import RunRecord, StageRecord, run_entries, store_of, warn_once
from flows.running.run_lock import is_running
from infra.config import Found
from infra.errors import InputError, TributaryError
from infra.processes.children import end_of_log
from tasks.durable.launch import log_path

_LEAST_SECONDS, _MOST_SECONDS = 0.5, 3600.0
_TAIL_BYTES = 65_536
"""of a job's log, in which its last step is looked for"""
_RATES = {"generated": "generate_tokens_per_s", "trained": "(?:train_)?tokens_per_s"}
_FIGURES = {
    "mfu": "mfu",
    "pause s": "publish_pause_seconds",
    "staleness": "staleness_mean",
    "KV use": "kv_use_max",
}
_BAR = 16


class RunningStage(Found):
    """One line."""

    run: str
    stage: str
    kind: str
    state: str
    done: int
    total: int
    message: str
    seconds: float
    seconds_left: float | None
    """at its pace so far; None while that is unknown"""
    tokens_per_s: dict[str, float]
    """`generated` and `trained`, of its last step; only on the machine that has the job's log"""
    figures: dict[str, float]
    """of the same step: the trainer's MFU, how long servers paused for its publish, how many
    versions old the samples were, and the largest share of a KV cache in use; as far as it has them
    """
    servers: str


def show_top(once: bool, every: float, json: bool, console: CommandConsole) -> int:
    if not _LEAST_SECONDS <= every <= _MOST_SECONDS:
        known = f"from {_LEAST_SECONDS} to {_MOST_SECONDS:g}"
        raise InputError(f"--every {every:g}: seconds between two looks, {known}")
    watched = Watched()
    if json:
        print_json(list(watched.now()))
        return 0
    if once or not console.is_terminal:
        console.print(_table(list(watched.now()), console.is_terminal))
        return 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_table(list(watched.now()), True), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return 0


@dataclass(slots=True)
class Watched:
    """What does not change is asked once."""

    _servers: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    _stages: dict[str, dict[str, StageRecord]] = field(
        default_factory=dict[str, dict[str, StageRecord]]
    )

    def now(self) -> Iterator[RunningStage]:
        """Stages that run, and those that wait for a place, of runs that a process works on."""
        for entry in run_entries():
            if not is_running(entry.run):
                continue
            try:
                record = RunRecord(store_of(entry.storage), entry.run)
                stages = record.stages(self._stages.get(entry.run))
                servers = self._servers_of(record)
            except TributaryError as error:  # one run's fault hides no other's stages
                warn_once(f"run {entry.run} is left out: {error}")
                continue
            self._stages[entry.run] = stages
            for stage in stages.values():
                if stage.state in ("running", "pending"):
                    yield _running(entry.run, stage, servers.get(stage.name, ""))

    def _servers_of(self, record: RunRecord) -> Mapping[str, str]:
        if record.run not in self._servers:
            head = record.head()
            plan = plan_of(head.flow, record.recipe(), head.arguments)
            self._servers[record.run] = {stage.name: servers_of(stage) for stage in plan}
        return self._servers[record.run]


def _running(run: str, stage: StageRecord, servers: str) -> RunningStage:
    now = time.time()
    return RunningStage(
        run=run,
        stage=stage.name,
        kind=stage.kind,
        state=stage.state,
        done=stage.done,
        total=stage.total,
        message=stage.message,
        seconds=round(stage.seconds_at(now), 1),
        seconds_left=stage.seconds_left(now),
        tokens_per_s=_last(stage.job, _RATES) if stage.job else {},
        figures=_last(stage.job, _FIGURES) if stage.job else {},
        servers=servers,
    )


def _last(job: str, metrics: Mapping[str, str]) -> dict[str, float]:
    """Return what the job's log shows of its last step, by name; `metrics` are patterns."""
    text = end_of_log(log_path(job), _TAIL_BYTES)
    return {
        name: float(found[-1])
        for name, metric in metrics.items()
        if (found := re.findall(rf"^step \d+: .*\b{metric}=([\d.e+-]+)", text, re.MULTILINE))
    }


def _table(stages: list[RunningStage], in_place: bool) -> Table:
    table = Table(title="running stages" if stages else "no stage runs now", title_justify="left")
    for header in (
        "run",
        "stage",
        "kind",
        "progress",
        "time",
        "left",
        "tokens/s",
        "last step",
        "servers",
    ):
        table.add_column(header, overflow="fold")
    for each in stages:
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in each.tokens_per_s.items())
        table.add_row(
            escape(each.run),
            each.stage,
            each.kind,
            _progress(each, in_place),
            duration(each.seconds),
            duration(each.seconds_left),
            rates,
            ", ".join(f"{name} {value:.2g}" for name, value in each.figures.items()),
            each.servers,
        )
    return table


def _progress(stage: RunningStage, in_place: bool) -> str | Table:
    if stage.state == "pending":
        return "waits for a place"
    said = escape(f"{stage.done}/{stage.total} {stage.message}") if stage.total else "starting"
    if not in_place or not stage.total:
        return said
    cell = Table.grid(padding=(0, 1))
    cell.add_row(ProgressBar(total=stage.total, completed=stage.done, width=_BAR), said)
    return cell
