"""One stage of a run as its page shows it: its plan, record, and small files of its artifact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.plan import PlannedStage
from flows.running.records import RunRecord, StageRecord
from infra.home import home
from infra.store.artifacts import ArtifactStore, Manifest
from infra.trace_file import TRACE_FILE, Trace, read_trace
from tasks.admit.spec import ADMISSION_FILE
from tasks.distill.spec import COUNTS_FILE
from tasks.evaluate.spec import SCORES_FILE
from tasks.rl.counts import RL_COUNTS_FILE
from tasks.series import SERIES_FILE, Points, read_series


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
    domain"""
    scores: dict[str, Any] = field(default_factory=dict[str, Any])
    """content of `scores.json`"""

    @property
    def name(self) -> str:
        return self.planned.name


def stage_views(record: RunRecord, plan: Sequence[PlannedStage]) -> list[StageView]:
    """In the plan's order; stages that the run has not reached are pending. An artifact that is
    gone from the store, or that has a file less than today's, leaves its fields empty."""
    artifacts = ArtifactStore(record.store, home() / "cache")
    stages = record.stages()
    return [
        _view(artifacts, planned, stages.get(planned.name) or _pending(planned)) for planned in plan
    ]


def _pending(planned: PlannedStage) -> StageRecord:
    return StageRecord(name=planned.name, kind=planned.kind)


def _view(artifacts: ArtifactStore, planned: PlannedStage, stage: StageRecord) -> StageView:
    if not stage.artifact:
        return StageView(planned, stage)
    manifest = artifacts.manifest(stage.kind, stage.digest)
    held = {file.path for file in manifest.files} if manifest else set[str]()

    def read(name: str) -> bytes | None:
        return artifacts.read(stage.kind, stage.digest, name) if name in held else None

    trace, series, scores = read(TRACE_FILE), read(SERIES_FILE), read(SCORES_FILE)
    counts = read(RL_COUNTS_FILE) or read(COUNTS_FILE) or read(ADMISSION_FILE)
    return StageView(
        planned,
        stage,
        manifest,
        read_trace(trace) if trace else None,
        read_series(series) if series else {},
        json.loads(counts) if counts else {},
        json.loads(scores) if scores else {},
    )
