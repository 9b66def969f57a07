"""Where the month takes place: a home, a run on record, MLflow's server, attempts at the stage."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flows.catalog import plan_of
from flows.load import load_recipe
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState, StageRecord
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.tracking.spool import spool_folder
from infra.tracking.tracker import Tracker
from tasks.durable.claims import Claims, Owner
from tasks.durable.protocol import JobInput, job_path
from tasks.durable.stage_identity import StageIdentity, stage_identity
from tasks.rl.spec import RlSettings, RlSpec
from tests.parts.mlflow_server import MlflowServer

STAGE = "reasoning-rl"
BASE_DIGEST = "b" * 64


def fixed_work() -> None:
    """Some milliseconds of what a loop and a page do: objects, text, small arrays. The same work
    takes longer where a neighbour uses the processor's caches, and costs are divided by it."""
    rows = [{"id": str(i), "tokens": list(range(i % 40)), "reward": i % 7 / 7} for i in range(300)]
    read = json.loads(json.dumps(rows))
    np.array([row["reward"] for row in read] * 20).argsort()


@dataclass(slots=True)
class Ground:
    """Of one simulated month."""

    folder: Path
    record: RunRecord
    spec: RlSpec
    identity: StageIdentity
    base: ArtifactRecord
    server: MlflowServer
    tracker: Tracker
    mlflow_run: str
    attempts: int = 0

    @property
    def log(self) -> Path:
        """A line for each update of any attempt."""
        return self.folder / "steps.jsonl"

    def attempt(self, kill_at: int, full_at: int, seconds: float) -> int:
        """Make one more attempt at the stage; -> its exit status."""
        self.attempts += 1
        store, digest = self.record.store, self.identity.digest
        name = f"{self.record.run}--{STAGE}--{digest[:12]}-a{self.attempts}"
        owner = Owner(home="month", launcher="process", job=name, run=self.record.run)
        assert Claims(store, "rl", digest).take(self.attempts, owner) is not None
        store.write(job_path(name), self._given(name).model_dump_json().encode())
        self.put_stage("running", name)
        faults = [str(kill_at), str(full_at)]
        worker = [sys.executable, "-P", "-m", "tests.programs.month.worker"]
        with (self.folder / f"attempt-{self.attempts}.log").open("wb") as out:
            done = subprocess.run(
                [*worker, store.root, name, str(self.log), *faults],
                stdout=out, stderr=subprocess.STDOUT, timeout=seconds, check=False,
                env=os.environ | {"PYTHONPATH": os.getcwd()},
            )  # fmt: skip
        return done.returncode

    def said(self) -> str:
        """The last lines of the last attempt."""
        return (self.folder / f"attempt-{self.attempts}.log").read_text()[-3000:]

    def put_stage(self, state: str, job: str = "", made: ArtifactRecord | None = None) -> None:
        self.record.put_stage(
            StageRecord.model_validate(
                {"name": STAGE, "kind": "rl", "state": state, "digest": self.identity.digest,
                 "job": job, "started": 1.0, "artifact": made.url if made else ""}
            )
        )  # fmt: skip

    def points(self, key: str) -> int:
        """How many points of a metric MLflow has."""
        return self._count("select count(*) from metrics where key = ?", key)

    def all_points(self) -> int:
        """How many points MLflow has, and will have: those of a killed attempt wait for the next
        one, which sends them."""
        waiting: defaultdict[str, set[int]] = defaultdict(set)
        for file in spool_folder().glob("*.jsonl"):
            for line in file.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # the last one may be incomplete
                    for point in json.loads(line)["metrics"]:
                        waiting[point["key"]].add(point["step"])
        known = "select step from metrics where key = ?"
        unsent = sum(len(s.difference(*self._rows(known, key))) for key, s in waiting.items())
        return self._count("select count(*) from metrics") + unsent

    def _count(self, query: str, *given: str) -> int:
        return self._rows(query, *given)[0][0]

    def _rows(self, query: str, *given: str) -> list[tuple[int, ...]]:
        with sqlite3.connect(f"file:{self.folder}/mlflow/mlflow.db?mode=ro", uri=True) as database:
            return database.execute(query, given).fetchall()

    def _given(self, name: str) -> JobInput:
        recipe = self.record.recipe()
        return JobInput(
            job=name, stage=STAGE, kind="rl", spec_name="rl",
            spec=self.spec.model_dump(mode="json"), digest=self.identity.digest,
            attempt=self.attempts, inputs={"model": self.base},
            resources=recipe.resources.default, pool=recipe.resources,
            mlflow_uri=self.server.uri, mlflow_experiment="month", mlflow_run=self.mlflow_run,
        )  # fmt: skip


def prepared(folder: Path, server: MlflowServer, steps: int) -> Ground:
    """A run on record whose base model is there; `TRIBUTARY_HOME` is set."""
    recipe = load_recipe("cpu-smoke")
    record = new_run(recipe, "post-train", {}, in_process=True)
    record.put_state(RunState(state="running", started=1.0))
    planned = next(stage for stage in plan_of("post-train", recipe, {}) if stage.name == STAGE)
    assert isinstance(planned.spec, RlSpec)
    settings = RlSettings.model_validate(
        {
            "steps": steps, "problems_per_step": 4, "group_size": 4, "max_staleness": 2,
            "optimizer": {"lr": 1e-4}, "evaluate": {"every": 25, "problems": 4},
            "bounds": {"solved_reward": 2.0, "max_failed_share": 1.0},
            "fleet": {"context_length": 32_768},
        }
    )  # fmt: skip
    spec = RlSpec(seed=0, settings=settings, domains=planned.spec.domains)
    tracker = Tracker(server.uri, "month")
    parent = tracker.parent_run(record.run, record.run, {}, {})
    identity = stage_identity(spec, {"model": BASE_DIGEST}, None)
    run = tracker.stage_run(parent, STAGE, identity.digest, {"tributary.kind": "rl"})
    made = _base(record, folder / "base")
    return Ground(folder, record, spec, identity, made, server, tracker, run)


def _base(record: RunRecord, folder: Path) -> ArtifactRecord:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return ArtifactStore(record.store).commit(
        "base", BASE_DIGEST, 1, folder, identity={}, inputs={}, code={"commit": "c" * 40},
        metrics={}, seeds={}, mlflow_run_id="", seconds=1.0,
    )  # fmt: skip
