"""A run on record whose stages are in the store, without anything having run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.rollout.records.dataset import DATA_FILE, DistilledRow, write_dataset
from engines.rollout.records.gallery import Gallery
from engines.types import Message, Problem, Sample, Status
from flows.running.new_run import new_run
from flows.running.records import RunRecord, StageRecord
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from tasks.durable.claims import Claims, Owner
from tests.parts.rollout_parts import CharChat, ids
from tests.parts.run_records import smoke
from tests.parts.sample_parts import sample_of

SCORES = {
    "score/agent-sft/agent": 0.25,
    "score/agent/agent": 0.75,
    "score/agent/reasoning": 0.125,
}


@dataclass(slots=True)
class RecordedRun:
    """A run of cpu-smoke; `put` adds a finished stage."""

    record: RunRecord
    scratch: Path

    @classmethod
    def of(cls, scratch: Path, name: str = "") -> RecordedRun:
        return cls(new_run(smoke(), "post-train", {}, name=name, in_process=True), scratch)

    @property
    def run(self) -> str:
        return self.record.run

    @property
    def artifacts(self) -> ArtifactStore:
        return ArtifactStore(self.record.store)

    def put(
        self,
        name: str,
        kind: str,
        folder: Path,
        *,
        metrics: Mapping[str, float] | None = None,
        inputs: Mapping[str, str] | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> ArtifactRecord:
        """Store `folder` as this stage's artifact, with its claim and its job's input."""
        number = len(self.record.stages()) + 1
        digest, job, store = f"{number:x}" * 64, f"job-{name}", self.record.store
        owner = Owner(home="h", launcher="local", job=job, run=self.run)
        Claims(store, kind, digest).take(1, owner)
        store.write(f"jobs/{job}.json", f'{{"stage": "{name}"}}'.encode())
        made = self.artifacts.commit(
            kind, digest, 1, folder, identity=identity or {}, inputs=inputs or {}, code={},
            metrics=metrics or {}, seeds={}, mlflow_run_id="", seconds=2.0,
        )  # fmt: skip
        stage = StageRecord(name=name, kind=kind, state="completed", digest=digest, mine=True)
        self.record.put_stage(
            stage.model_copy(update={"artifact": made.url, "started": float(number)})
        )
        return made

    def folder(self, name: str) -> Path:
        made = self.scratch / name
        made.mkdir(parents=True)
        return made

    def with_samples(self) -> RecordedRun:
        """An expert's `rl` of three steps, a dataset, and the evaluation of the expert."""
        gallery = Gallery(CharChat())
        for step in (1, 2, 3):
            gallery.add(f"step {step}", [said(step, 0, 0.0), said(step, 1, step / 4)])
        gallery.write(trained := self.folder("rl"), kept="all rollouts of steps 1 to 3")
        rl = self.put("agent-rl", "rl", trained)
        problem = Problem("agent/distill/1", "agent", (Message("user", "find it"),))
        turns = (Message("assistant", "let me look"), Message("tool", "here"))
        row = DistilledRow(
            [1, 2], [0, 1], problem, turns, "agent", rl.digest, 0, 3, {"outcome": 1.0}
        )
        write_dataset((data := self.folder("distill")) / DATA_FILE, [row])
        self.put("unified-distill", "distill", data)
        scored = Gallery(CharChat())
        scored.add("agent greedy", [said(9, 0, 1.0)])
        scored.add("general score", [said(9, 1, 0.0, Status.TRUNCATED)])
        scored.write(evaluated := self.folder("evaluate"))
        (evaluated / "scores.json").write_text('{"scores": {}, "cells": []}')
        self.put(
            "evaluate", "evaluate", evaluated, metrics=SCORES, inputs={"agent": rl.digest},
            identity={"home": {"agent": ["agent"]}},
        )  # fmt: skip
        return self


def said(problem: int, index: int, reward: float, status: Status = Status.COMPLETED) -> Sample:
    """The policy says `ab`, is told `[x]`, and says `c`."""
    return sample_of(
        f"agent/rl/{problem}", "agent", f"g{problem}", f"g{problem}#{index}", index,
        ids("<q>ab[x]c"), [0, 0, 0, 1, 1, 0, 0, 0, 1], [0.0] * 9,
        [-1, -1, -1, 0, 0, -1, -1, -1, 0], status, reward, {"outcome": reward}, "as asked",
    )  # fmt: skip


def exit_code(arguments: Sequence[str]) -> int:
    """Of the command, called in this process."""
    from flows.command.main import main

    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("the command always ends with an exit code")
