"""What a run that did not finish says: the cause, the log with its last lines, the next command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.reports.stage_view import StageView
from flows.running.records import RunState
from tasks.durable.launch import log_path

TAIL_LINES, _TAIL_BYTES = 40, 16_384


@dataclass(frozen=True, slots=True)
class FailedStage:
    name: str
    state: str
    cause: str
    log: str
    """path of its job's log on the machine that ran it; empty if it ran no job"""
    tail: str
    """the log's last lines; empty where the log is on another machine"""


@dataclass(frozen=True, slots=True)
class Failure:
    state: str
    cause: str
    next_command: str
    stages: Sequence[FailedStage]


def failure_of(run: str, state: RunState, views: Sequence[StageView]) -> Failure | None:
    """None for a run that goes on, has not begun, or is complete."""
    if state.state not in ("failed", "stopped"):
        return None
    ended = [view.record for view in views if view.record.state in ("failed", "stopped")]
    stages = [
        FailedStage(
            stage.name,
            stage.state,
            stage.message,
            str(log_path(stage.job)) if stage.job else "",
            tail(log_path(stage.job)) if stage.job else "",
        )
        for stage in ended
    ]
    cause = state.message or next((s.cause for s in stages if s.cause), "")
    return Failure(state.state, cause, f"tributary resume {run}", stages)


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, and at most 16 KiB of them; empty where there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
