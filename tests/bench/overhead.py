"""What a stage costs beyond its work, on the whole stack (Ray, MLflow, Prefect's server beside).

A tiny RL stage goes through the attempt protocol as a flow sends it: digest, look-up, claim, Ray
job, leases, body, artifact, MLflow run. Overhead is the wall time around all of that less the time
from the first request to the last published step, which the body measures.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.load import load_recipe
from flows.open import THREADS, home_id
from infra.artifacts import ArtifactRecord, ArtifactStore
from infra.cluster import Cluster
from infra.home import home
from infra.stack import Stack, down, up
from infra.storage import Store
from infra.tracking import Tracker
from tasks.attempts import Place, StageWork, run_stage
from tasks.identity import stage_identity
from tasks.ray_launch import RayLauncher
from tasks.rl import RlSpec
from tasks.stage import Resources, StageResources
from tests.bench.rows import Row

TIMES = 5
EXPERT = "reasoning"
GONE_S = 30.0


def measure(model: Path) -> list[Row]:
    """`model` is an HF folder that the stage starts from."""
    with _own_stack() as stack:
        stages = _Stages.on(stack, model)
        first = stages.overhead()
        warm = [stages.overhead() for _ in range(TIMES)]
        cold: list[float] = []
        for _ in range(TIMES):
            _end_fleet()
            cold.append(stages.overhead())
    return [
        Row("stage overhead, nothing warm", first, "s", 20, True, "first stage after `up`"),
        Row("stage overhead, fleet cold", statistics.median(cold), "s", 20, True, _each(cold)),
        Row("stage overhead, fleet up", statistics.median(warm), "s", 10, True, _each(warm)),
    ]


def _each(values: list[float]) -> str:
    return f"median of {len(values)}: " + ", ".join(f"{value:.1f}" for value in values)


@dataclass(slots=True)
class _Stages:
    """Stages that differ in their seed only."""

    place: Place
    tracker: Tracker
    parent: str
    start: ArtifactRecord
    seed: int = 0

    @classmethod
    def on(cls, stack: Stack, model: Path) -> _Stages:
        store = Store(f"file://{home()}/store")
        artifacts = ArtifactStore(store, home() / "cache")
        place = Place(
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
        self.seed += 1
        recipe = load_recipe("cpu-smoke")
        expert = recipe.experts[EXPERT]
        spec = RlSpec(seed=self.seed, settings=expert.rl, domains=[expert.domain])
        began = time.monotonic()
        digest = stage_identity(spec, {"model": self.start.digest}).digest
        name = f"rl-{self.seed}"
        tracked = self.tracker.stage_run(self.parent, name, digest, {})
        inputs = {"model": self.start}
        work = StageWork(name, spec, inputs, StageResources(), digest, tracked)
        record, cached = run_stage(work, self.place, _Quiet())
        self.tracker.finish(tracked, "FINISHED")
        if cached:
            raise RuntimeError("the stage was there already: nothing was measured")
        return time.monotonic() - began - record.metrics["work_seconds"]


def _put(artifacts: ArtifactStore, model: Path) -> ArtifactRecord:
    """The model as an artifact of the store, as an earlier stage leaves one."""
    digest = hashlib.sha256(b"bench").hexdigest()
    return artifacts.commit(
        "base", digest, 1, model,
        identity={}, inputs={}, code={}, metrics={}, seeds={}, mlflow_run_id="", seconds=0.0,
    )  # fmt: skip


class _Quiet:
    """A watch that nobody looks at."""

    def line(self, text: str) -> None: ...

    def progress(self, done: int, total: int, message: str) -> None: ...

    def warn(self, message: str) -> None: ...

    def started(self, job: str, attempt: int, mine: bool) -> None: ...


@contextlib.contextmanager
def _own_stack() -> Generator[Stack]:
    """A stack in a home of its own, which this process uses meanwhile; ends with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="tr-", ignore_cleanup_errors=True) as folder,
        _environment({"TRIBUTARY_HOME": folder}),
    ):
        try:
            stack = up()
            with _environment(stack.env()):
                yield stack
        finally:
            down()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _end_fleet() -> None:
    """End the fleet's manager with its servers, and wait until Ray has forgotten it."""
    import ray
    from ray.exceptions import RayActorError
    from ray.util import list_named_actors

    from engines.raylink import connect
    from engines.sglang.fleet import open_manager

    connect()
    before = set(list_named_actors())
    manager = open_manager()
    with contextlib.suppress(RayActorError):  # it answers by ending
        ray.get(manager.retire.remote(), timeout=GONE_S)
    deadline = time.monotonic() + GONE_S
    while any(name.startswith("fleet-manager-") for name in list_named_actors()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the fleet manager did not end; actors were {before}")
        time.sleep(0.1)
    ray.shutdown()
