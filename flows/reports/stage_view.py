"""Collects what the page says of a stage: plan, record, counts, seconds, and why it failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.plan import PlannedStage
from flows.running.records import RunRecord, RunState, StageRecord
from infra.processes.children import end_of_log
from infra.store.artifacts import ArtifactStore, Manifest
from infra.timeline import TRACE_FILE, TRAINER, Trace, read_trace
from tasks.admit.admission import CAUSES
from tasks.admit.spec import ADMISSION_FILE
from tasks.distill.spec import COUNTS_FILE
from tasks.durable.launch import log_path
from tasks.evaluate.spec import SCORES_FILE
from tasks.mine.spec import MINE_FILE
from tasks.reward.spec import HELD_OUT_FILE
from tasks.rl.counts import RL_COUNTS_FILE
from tasks.rl.curve import Curve, ScorePoint
from tasks.screen.spec import SCREEN_FILE
from tasks.training_record import SERIES_FILE, Points, read_series, thinned

_HELD_OUT = "eval_outcome_"
"""begins the metrics of scores on held-out problems; then comes the domain"""
_COUNTS_FILES = (
    *(RL_COUNTS_FILE, COUNTS_FILE, ADMISSION_FILE, SCREEN_FILE, HELD_OUT_FILE),
    MINE_FILE,
)
"""an artifact has at most one of them"""
_READ_BYTES = 4 * 2**20
"""of the end of a log, at most"""
_SFT = ("sequences", "too_long", "without_thinking", "unrendered")
TAIL_LINES, _TAIL_BYTES = 40, 16_384
WHAT = {
    "sample": "sampling and judging; of RL, while the trainer waits",
    "train": "optimizer steps",
    "publish": "new weights to the servers",
    "hold": "a publish waits for an evaluation",
    "checkpoint": "writing checkpoints, as long as they stop the work",
    "other": "the rest of the work",
    "start and end": "processes, devices, loading and saving the model",
}
"""the parts, in the order in which they are drawn"""


@dataclass(frozen=True, slots=True)
class StageView:
    """Everything about a stage but its samples. What it has not made yet is None or empty."""

    planned: PlannedStage
    record: StageRecord
    manifest: Manifest | None = None
    trace: Trace | None = None
    series: dict[str, Points] = field(default_factory=dict[str, "Points"])
    counts: dict[str, Any] = field(default_factory=dict[str, Any])
    """of `rl`: {"rollouts": ..., "groups": ...}; of `distill` and `admit`: those of each
    domain; of `reward`: its report on held-out pairs"""
    scores: dict[str, Any] = field(default_factory=dict[str, Any])
    """content of `scores.json`"""

    @property
    def curve_so_far(self) -> Curve | None:
        """Return the curve of a stage that runs, as far as its log shows it."""
        training = dict(self.series.get("outcome_mean", ()))
        held_out = {
            name.removeprefix(_HELD_OUT): self._scored(name.removeprefix(_HELD_OUT))
            for name in self.series
            if name.startswith(_HELD_OUT)
        }
        return Curve(training=training, held_out=held_out) if training or held_out else None

    def _scored(self, domain: str) -> list[ScorePoint]:
        errors = dict(self.series.get(f"eval_stderr_{domain}", ()))
        problems = dict(self.series.get(f"eval_problems_{domain}", ()))
        return [
            ScorePoint(
                step=step, version=0, outcome=outcome, stderr=errors.get(step, 0.0),
                problems=int(problems.get(step, 0)), wanted=int(problems.get(step, 0)),
            )
            for step, outcome in self.series[f"{_HELD_OUT}{domain}"]
        ]  # fmt: skip

    @property
    def name(self) -> str:
        return self.planned.name


def stage_views(record: RunRecord, plan: Sequence[PlannedStage]) -> list[StageView]:
    """Return the views in the plan's order; stages that the run has not reached are pending. An
    artifact that is gone from the store, or that has a file less than today's, leaves its fields
    empty."""
    artifacts = ArtifactStore(record.store)
    stages = record.stages()
    pending = {stage.name: StageRecord(name=stage.name, kind=stage.kind) for stage in plan}
    return [_view(artifacts, each, (pending | stages)[each.name]) for each in plan]


def _view(artifacts: ArtifactStore, planned: PlannedStage, stage: StageRecord) -> StageView:
    if not stage.artifact:
        live = _series_so_far(stage.job) if stage.state == "running" and stage.job else {}
        return StageView(planned, stage, series=live)
    manifest = artifacts.manifest(stage.kind, stage.digest)
    held = {file.path for file in manifest.files} if manifest else set[str]()

    def read(name: str) -> bytes | None:
        return artifacts.read(stage.kind, stage.digest, name) if name in held else None

    trace, series, scores = read(TRACE_FILE), read(SERIES_FILE), read(SCORES_FILE)
    counts = next(filter(None, map(read, _COUNTS_FILES)), None)
    return StageView(
        planned,
        stage,
        manifest,
        read_trace(trace) if trace else None,
        read_series(series) if series else {},
        json.loads(counts) if counts else {},
        json.loads(scores) if scores else {},
    )


def _series_so_far(job: str) -> dict[str, Points]:
    """Return what the job's log says of its steps; nothing on a machine that has no such log."""
    found: dict[str, dict[int, float]] = {}
    text = end_of_log(log_path(job), _READ_BYTES)
    for step, said in re.findall(r"^step (\d+): (.*)$", text, re.MULTILINE):
        for name, value in re.findall(r"(\S+)=(-?[\d.]+(?:e[+-]?\d+)?)(?= |$)", said):
            found.setdefault(name, {})[int(step)] = float(value)
    return {name: thinned(sorted(points.items())) for name, points in found.items()}


@dataclass(frozen=True, slots=True)
class Count:
    """Example: Count("wrong", 99, 128)"""

    name: str
    value: int
    of: int
    """what it is a share of"""
    is_kept: bool = False
    """whether it is what got through"""


@dataclass(frozen=True, slots=True)
class Counted:
    """One table: what was counted in one stage, e.g. its groups by filter."""

    stage: str
    title: str
    counts: Sequence[Count]


def counted(views: Sequence[StageView]) -> list[Counted]:
    """Return the tables of all stages that have counts, in the plan's order; no table is empty."""
    return [table for view in views for table in _tables(view) if table.counts]


def _tables(view: StageView) -> Iterator[Counted]:
    match view.planned.kind:
        case "distill":
            for domain, counts in view.counts.items():
                yield Counted(view.name, f"rollouts of {domain}", _shares(counts, "sampled"))
        case "admit":
            for name, counts in view.counts.items():
                yield Counted(view.name, f"problems of {name}", _tried(counts))
        case "mine":
            for domain, counts in view.counts.items():
                read, kept = counts["rollouts"], counts["kept"]
                title = f"{read} rollouts of {domain}, by pathology; {kept} problems are kept"
                shown = [Count(k, of["rollouts"], read) for k, of in counts["shown"].items()]
                yield Counted(view.name, title, shown)
        case "screen":
            for name, counts in view.counts.items():
                title = f"problems of {name}, by how often the model solves them"
                yield Counted(view.name, title, _shares(counts, "tried"))
        case "evaluate":
            yield from _evaluated(view)
        case "reward":
            yield from _judged_pairs(view.name, view.counts)
        case _ if "groups" in view.counts:
            yield from _learned(view.name, view.counts)
        case _:
            metrics = view.manifest.metrics if view.manifest else {}
            yield Counted(view.name, "sequences", _sequences(metrics))


def _learned(stage: str, counts: Mapping[str, Any]) -> Iterator[Counted]:
    rollouts, groups = dict[str, int](counts["rollouts"]), dict[str, int](counts["groups"])
    total = sum(rollouts.values())
    yield Counted(
        stage,
        "rollouts, by how they ended",
        [Count(k, n, total, k == "completed") for k, n in _by_size(rollouts)],
    )
    sampled = groups.pop("sampled", 0)
    named = [Count("sampled", sampled, sampled, True)] + [
        Count(k, n, sampled, k == "trained on") for k, n in _by_size(groups) if n
    ]
    yield Counted(stage, "groups, by what became of them", named if sampled else [])


def _shares(counts: Mapping[str, int], of: str) -> list[Count]:
    return [Count(k, n, counts.get(of, 0), k in (of, "kept")) for k, n in counts.items()]


def _tried(counts: Mapping[str, int]) -> list[Count]:
    """Count the problems that were tried, and those that are refused by the first reason."""
    tried, admitted, refused = counts["tried"], counts["admitted"], dict[str, int](counts)
    del refused["tried"], refused["admitted"]
    why = [Count(f"refused: {CAUSES[cause]}", n, tried) for cause, n in _by_size(refused)]
    return [Count("tried", tried, tried, True), Count("admitted", admitted, tried, True), *why]


def _judged_pairs(stage: str, report: Mapping[str, Any]) -> Iterator[Counted]:
    """Yield how many held-out pairs of each kind a reward model puts in the right order."""
    titles = {
        "by_margin": "held-out pairs in the right order, by the data's margin",
        "by_confidence": "held-out pairs in the right order, by how sure the model is",
        "by_length": "held-out pairs in the right order, by length",
    }
    for name, title in titles.items():
        groups = report.get(name, [])
        yield Counted(
            stage, title, [Count(g["name"], g["right"], g["pairs"], True) for g in groups]
        )


def _evaluated(view: StageView) -> Iterator[Counted]:
    """Over all cells: shares are of each cell, and its rollouts are known."""
    totals: dict[str, float] = {}
    rollouts = 0
    reasons: dict[str, int] = {}
    for cell in view.scores.get("cells", []):
        number = cell.get("rollouts", 0)
        rollouts += number
        for name in ("truncated", "malformed", "failed"):
            totals[name] = totals.get(name, 0.0) + number * cell.get(f"{name}_share", 0.0)
        if cell.get("failure"):
            reasons[cell["failure"]] = reasons.get(cell["failure"], 0) + 1
    bad = [Count(name, round(value), rollouts) for name, value in totals.items()]
    well = Count("completed", rollouts - sum(c.value for c in bad), rollouts, True)
    yield Counted(view.name, "rollouts, by how they ended", [well, *bad] if rollouts else [])
    cells = len(view.scores.get("cells", []))
    failures = [Count(reason, n, cells) for reason, n in _by_size(reasons)]
    yield Counted(view.name, "cells, by their most frequent failure", failures)


def _sequences(metrics: Mapping[str, float]) -> list[Count]:
    """Rows of an SFT stage: those that it could learn from, and those left out, by reason."""
    if "rows_read" in metrics:
        read = int(metrics["rows_read"])
        bad = {
            name.removeprefix("bad_rows_"): int(value)
            for name, value in metrics.items()
            if name.startswith("bad_rows_")
        }
        good = Count("read and used", read - sum(bad.values()), read, True)
        long = int(metrics.get("documents_cut", 0))
        cut = [Count("of them longer than a sequence and cut", long, read, True)] if long else []
        return [good, *cut, *(Count(f"bad: {k}", n, read) for k, n in _by_size(bad))]
    packed, *rest = (int(metrics.get(name, 0)) for name in _SFT)
    if not packed:
        return []
    too_long, without_thinking, unrendered = rest
    total = packed + too_long + unrendered
    return [
        Count("used", packed, total, True),
        Count("of them without thinking", without_thinking, total, True),
        Count("left out: too long", too_long, total),
        Count("left out: the chat template does not render it", unrendered, total),
    ]


def _by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


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
    """Say why a run failed; None for a run that goes on, has not begun, or is complete."""
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
    return "\n".join(end_of_log(path, _TAIL_BYTES).splitlines()[-lines:])


@dataclass(frozen=True, slots=True)
class Seconds:
    """The seconds of one stage; for a cached one, those of the attempt that made it."""

    total: float
    parts: dict[str, float]
    """by name of `WHAT`; they add up to the total"""


def seconds_of(view: StageView) -> Seconds | None:
    """Return the seconds of a stage; None where no artifact is there to say it."""
    if view.manifest is None:
        return None
    metrics = view.manifest.metrics
    total = max(view.manifest.seconds, 1e-9)
    work = min(metrics.get("work_seconds", 0.0), total)
    known = _known(view.planned.spec.policy is not None, metrics, view.trace, work)
    spent = sum(known.values())
    if spent > work > 0:  # several attempts' sums, or two clocks that differ a little
        known = {name: value * work / spent for name, value in known.items()}
        spent = work
    parts = {**known, "other": work - spent, "start and end": total - work}
    return Seconds(total, {name: parts[name] for name in WHAT if parts.get(name, 0.0) > 0})


def _known(
    is_policy: bool, metrics: Mapping[str, float], trace: Trace | None, work: float
) -> dict[str, float]:
    checkpoint = metrics.get("checkpoint_seconds", 0.0)
    if is_policy and "trainer_idle_seconds" in metrics:
        return {
            "sample": metrics["trainer_idle_seconds"],
            "train": metrics["train_seconds"],
            "publish": metrics["publish_seconds"],
            "hold": _held(trace),
            "checkpoint": checkpoint,
        }
    if "train_seconds" in metrics:
        return {"train": metrics["train_seconds"], "checkpoint": checkpoint}
    if "generate_tokens_per_s" in metrics or "generated_tokens" in metrics:
        return {"sample": work}
    return {}


def _held(trace: Trace | None) -> float:
    events = trace.events if trace else ()
    return sum(e.seconds or 0.0 for e in events if (e.lane, e.name) == (TRAINER, "hold"))
