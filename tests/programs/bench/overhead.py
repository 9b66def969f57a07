"""What a stage costs beyond its work, on the whole stack (Ray, MLflow, Prefect's server beside).

A flow run on Prefect's server sends a tiny RL stage as a task run through the attempt protocol:
digest, look-up, claim, Ray job, leases, body, artifact, MLflow run. Overhead is the wall time
around all of that, the flow run's beginning and end included, minus the time from the first request
to the last published step, which the body measures.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.load import load_recipe
from flows.running.open import THREADS, home_id
from infra.access import USER, key
from infra.home import home
from infra.stack import Stack, down, up
from infra.stack.cluster import Cluster
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.store import Store
from infra.tracking.tracker import Tracker
from tasks.durable.attempts import RunPlace, StageWork, run_stage
from tasks.durable.launch import RayLauncher
from tasks.durable.protocol import JobWatcher
from tasks.durable.stage_identity import stage_identity
from tasks.rl.spec import RlSettings, RlSpec
from tasks.stage import Resources, StageResources
from tests.parts.recipe_parts import domain_of, settings_of
from tests.programs.bench.rows import Row

TIMES = 5
EXPERT = "reasoning"
GONE_S = 30.0


def measure(model: Path) -> list[Row]:
    """`model` is an HF folder that the stage starts from."""
    with _own_stack() as stack:
        stages = _Stages.on(stack, model)
        first = stages.overhead()
        stages.prefect.clear()
        warm = [stages.overhead() for _ in range(TIMES)]
        part = f"; of it in Prefect: {_each(stages.prefect)}"
        cold: list[float] = []
        for _ in range(TIMES):
            _end_fleet_apart()
            cold.append(stages.overhead())
    return [
        Row("stage overhead, nothing warm", first, "s", 20, True, "first stage after `up`"),
        Row("stage overhead, fleet cold", statistics.median(cold), "s", 11, True, _each(cold)),
        Row("stage overhead, fleet up", statistics.median(warm), "s", 4, True, _each(warm) + part),
    ]


def _each(values: list[float]) -> str:
    return f"median of {len(values)}: " + ", ".join(f"{value:.1f}" for value in values)


@dataclass(slots=True)
class _Stages:
    """Stages that differ in their seed only."""

    place: RunPlace
    tracker: Tracker
    parent: str
    start: ArtifactRecord
    seed: int = 0
    _in_protocol: float = 0.0
    prefect: list[float] = field(default_factory=list[float])
    """seconds of each stage outside of the attempt protocol"""

    @classmethod
    def on(cls, stack: Stack, model: Path) -> _Stages:
        store = Store(f"file://{home()}/store")
        artifacts = ArtifactStore(store)
        place = RunPlace(
            store=store,
            artifacts=artifacts,
            launcher=RayLauncher(Cluster.of(stack)),
            home_id=home_id(),
            run="bench",
            pool=Resources(),
            env=THREADS | stack.env(),
            mlflow_uri=stack.mlflow_uri,
            mlflow_experiment="bench",
        )
        tracker = Tracker(stack.mlflow_uri, "bench")
        parent = tracker.parent_run("bench", "bench", {}, {})
        return cls(place, tracker, parent, _put(artifacts, model))

    def overhead(self) -> float:
        """Seconds that the next stage took beyond its work."""
        from prefect import flow

        from tasks.durable.prefect_task import durable_stage

        self.seed += 1
        planned = _Planned(f"rl-{self.seed}", self.seed)

        @flow(name="bench", flow_run_name=planned.name, persist_result=False)
        def one_stage() -> ArtifactRecord:
            inputs = {"model": self.start}
            sent: Any = durable_stage.submit(
                planned, inputs, self._run, self._job_url, self._job_url
            )
            return sent.result()

        began = time.monotonic()
        record = one_stage()
        spent = time.monotonic() - began
        self.prefect.append(spent - self._in_protocol)
        return spent - record.metrics["work_seconds"]

    def _run(
        self, planned: _Planned, inputs: Mapping[str, ArtifactRecord], watch: JobWatcher
    ) -> tuple[ArtifactRecord, bool]:
        """What `RecipeRun.stage` does for a planned stage, without a run's record."""
        began = time.monotonic()
        expert = load_recipe("cpu-smoke").experts[EXPERT]
        spec = RlSpec(
            seed=planned.seed,
            settings=settings_of(expert.path, RlSettings),
            domains=[domain_of(expert)],
        )
        digest = stage_identity(spec, {role: r.digest for role, r in inputs.items()}).digest
        tracked = self.tracker.stage_run(self.parent, planned.name, digest, {})
        work = StageWork(planned.name, spec, inputs, StageResources(), digest, tracked)
        record, cached = run_stage(work, self.place, watch)
        self.tracker.finish(tracked, "FINISHED")
        if cached:
            raise RuntimeError("the stage was there already: nothing was measured")
        self._in_protocol = time.monotonic() - began
        return record, cached

    def _job_url(self, _name: str) -> str:
        return self.place.mlflow_uri


@dataclass(frozen=True, slots=True)
class _Planned:
    name: str
    seed: int
    kind: str = "rl"
    steps: int = 1


def _put(artifacts: ArtifactStore, model: Path) -> ArtifactRecord:
    """The model as an artifact of the store, as an earlier stage leaves one."""
    digest = hashlib.sha256(b"bench").hexdigest()
    return artifacts.commit(
        "base", digest, 1, model,
        identity={}, inputs={}, code={}, metrics={}, seeds={}, mlflow_run_id="", seconds=0.0,
    )  # fmt: skip


@contextlib.contextmanager
def _own_stack() -> Generator[Stack]:
    """A stack in a home of its own, which this process uses meanwhile; ends with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="tr-", ignore_cleanup_errors=True) as folder,
        _environment({"TRIBUTARY_HOME": folder}),
    ):
        try:
            stack = up()
            own = stack.env() | stack.secret_env()
            with _environment(own), _prefect(stack.prefect_api):
                yield stack
        finally:
            down()


@contextlib.contextmanager
def _prefect(api: str) -> Generator[None]:
    """Flows of this process run on that server; Prefect read its settings when it was imported."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    known: Any = {PREFECT_API_URL: api, PREFECT_API_AUTH_STRING: f"{USER}:{key()}"}
    with temporary_settings(known):
        yield


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _end_fleet_apart() -> None:
    """In another process: Ray ends one that has left it and then frees one of Ray's objects."""
    code = "from tests.programs.bench.overhead import end_fleet; end_fleet()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=3 * GONE_S)


def end_fleet() -> None:
    """End all servers and their parent process; trainer ranks stay."""
    import ray

    from engines.devices.find_owner import open_owner

    if not ray.get(open_owner().end_idle.remote("server"), timeout=GONE_S):
        raise RuntimeError("a stage still uses the servers")
