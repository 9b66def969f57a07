"""`tributary logs`: what a stage's job wrote."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console

from flows.explain import nearest
from flows.running.records import RunRecord, StageRecord, find_run
from flows.running.run_lock import is_running
from infra.errors import InputError
from infra.shown_text import shown
from tasks.durable.launch import log_path

POLL_SECONDS = 0.5
LIVE = ("pending", "running")


def show_log(run: str, stage: str, follow: bool, console: Console) -> int:
    """Print the log of a stage's last job; with `follow` until the stage, or its run, is over."""
    record = find_run(run)
    chosen = _stage(record, stage)
    path = log_path(chosen.job)
    if not path.is_file():
        raise InputError(f"stage {chosen.name}: its log {path} is not on this machine")
    console.print(f"{record.run} {chosen.name}: {path}", markup=False, soft_wrap=True)
    with path.open(errors="replace") as log:
        live = follow
        while live:
            live = _is_live(record, chosen)  # before reading: what it wrote last is printed too
            _copy(log)
            if live:
                time.sleep(POLL_SECONDS)
        _copy(log)
    return 0


def _copy(log: TextIO) -> None:
    sys.stdout.write(shown(log.read()))
    sys.stdout.flush()


def _stage(record: RunRecord, wanted: str) -> StageRecord:
    """Raises InputError for a stage that the run has not, or that has no job."""
    stages = record.stages()
    if wanted and wanted not in stages:
        raise InputError(
            f"run {record.run} has reached no stage `{wanted}`{nearest(wanted, list(stages))};"
            f" it has: {', '.join(stages) or 'none'}"
        )
    named = [stages[wanted]] if wanted else list(stages.values())
    started = [stage for stage in named if stage.job]
    if not started:
        what = f"stage {wanted}" if wanted else f"run {record.run}: every stage so far"
        raise InputError(f"{what} ran no job (cached, or not started): there is no log")
    return max(started, key=lambda stage: stage.started)


def _is_live(record: RunRecord, stage: StageRecord) -> bool:
    """Whether this job of the stage may still write."""
    now = record.stage(stage.name)
    is_same = now is not None and now.job == stage.job and now.state in LIVE
    return is_same and is_running(record.run)
