"""The live table of a run, read from its record; plain lines where the output is no terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType

from rich.live import Live
from rich.table import Table
from rich.text import Text

from flows.command.app import CommandConsole, duration, text_table
from flows.plan import PlannedStage
from flows.reports.charts import curve_table, pathology_table
from flows.reports.outcome import state_line, warning_lines, what_training_did
from flows.reports.page import report_path
from flows.reports.report import (
    Report,
    build_report,
    notes,
    score_table,
    task_table,
    training_table,
)
from flows.running.records import RunRecord, StageRecord

_TELL_S = 30.0
"""between two lines on how far a stage is"""
STYLES = {
    "pending": "dim",
    "running": "bold",
    "completed": "green",
    "cached": "cyan",
    "failed": "red",
    "stopped": "yellow",
}


class LiveTable:
    """`update` redraws in place on a terminal; elsewhere it says each change of a stage's state,
    and now and then how far it is."""

    def __init__(
        self, record: RunRecord, plan: list[PlannedStage], console: CommandConsole
    ) -> None:
        self._record, self._plan, self._console = record, plan, console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._stages: dict[str, StageRecord] = {}
        self._said: dict[str, str] = {}
        self._told: dict[str, float] = {}
        """when something was last said of each stage, by the monotonic clock"""
        self._warned: dict[str, str] = {}

    def __enter__(self) -> LiveTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(KeyboardInterrupt):
                self._live.stop()

    def update(self) -> None:
        stages = self._stages = self._record.stages(self._stages)
        if self._live is not None:
            self._live.update(run_table(self._plan, stages), refresh=True)
            return
        now = time.monotonic()
        for name, stage in stages.items():
            if self._said.get(name) != stage.state:
                self._said[name], self._told[name] = stage.state, now
                seconds = f" in {stage.seconds:.1f} s" if stage.state == "completed" else ""
                self._console.print(f"{name}: {stage.state}{seconds}", markup=False)
            elif stage.state == "running" and stage.total and now - self._told[name] > _TELL_S:
                self._told[name] = now
                left = duration(stage.seconds_left(time.time()))
                ahead = f", about {left} left" if left else ""
                self._console.print(f"{name}: {stage.done} of {stage.total}{ahead}", markup=False)
                self._warn(name, stage)

    def _warn(self, name: str, stage: StageRecord) -> None:
        """Say the newest warning once."""
        newest = "".join(map(str, stage.warnings[-1:]))
        if newest and self._warned.get(name) != newest:
            self._warned[name] = newest
            self._console.print(f"warning: {name}: {newest}", style="yellow", markup=False)


def run_table(plan: list[PlannedStage], stages: dict[str, StageRecord]) -> Table:
    """Show where each stage stands."""
    table = Table("stage", "kind", "state", "progress", "time", "left", expand=False)
    for planned in plan:
        stage = stages.get(planned.name) or StageRecord(name=planned.name, kind=planned.kind)
        running = stage.state == "running"
        seconds = stage.seconds_at(time.time())
        progress = f"{stage.done}/{stage.total} {stage.message}" if stage.total else ""
        table.add_row(
            planned.name,
            planned.kind,
            Text(stage.state, STYLES[stage.state]),
            Text(progress if running else ""),  # what a stage says may have brackets in it
            f"{seconds:.1f} s" if seconds else "",
            duration(stage.seconds_left(time.time())),
        )
    busy = [stage for stage in stages.values() if stage.state == "running"]
    warned = [f"{stage.name}: {said}" for stage in busy for said in stage.warnings[-1:]]
    table.caption = Text("\n".join(warned), "yellow") if warned else None
    return table


def show_end(record: RunRecord, plan: list[PlannedStage], console: CommandConsole) -> int:
    """Scores, notes and links of a run that is over, and how to talk to its last model."""
    report = build_report(record, plan)
    console.print(state_line(report), markup=False)
    if verdict := what_training_did(report):
        console.print(verdict, style="bold", markup=False, highlight=False, soft_wrap=True)
    for table in _result_tables(report):
        console.print(table)
    said = [f"{s.name}: {s.message}" for s in record.stages().values() if s.is_done and s.message]
    for note in [*said, *notes(report, record.recipe())]:
        console.print(f"- {note}", markup=False, soft_wrap=True)
    for line in warning_lines(report):
        console.print(f"warning: {line}", style="yellow", markup=False, soft_wrap=True)
    links, page = record.state().links, report_path(report.run)
    links.pop("report", "")  # another machine may have made it, or nobody yet
    for title, url in (links | ({"report": page.as_uri()} if page.is_file() else {})).items():
        console.print(f"{title}: {url}", markup=False, soft_wrap=True)
    trained = [stage.name for stage in plan if stage.model]
    if trained and report.state == "completed":
        where = f"{report.run}/{trained[-1]}"
        console.print(f"try it: tributary chat {where}", markup=False, soft_wrap=True)
    return 0 if report.state == "completed" else 1


def _result_tables(report: Report) -> Iterator[Table]:
    sampled = score_table(report.scores, report.no_verdict)
    for title, (header, rows) in (
        ("temperature 1", sampled),
        ("greedy", score_table(report.greedy)),
        *((name, score_table(of.scores, of.no_verdict)) for name, of in report.sampled.items()),
    ):
        if rows:
            yield text_table(header, rows, f"mean outcome, {title}")
    if report.gains:
        yield text_table(*training_table(report), "first and last version, with 95% intervals")
    if report.pathologies:
        yield text_table(*pathology_table(report.pathologies), "broken answers, temperature 1")
    if report.tasks:
        yield text_table(*task_table(report.tasks), "tasks of lm-eval")
    header, rows = curve_table(report.curves)
    if rows:
        yield text_table(header, rows, "on held-out problems while training")
