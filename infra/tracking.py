"""Tracking in MLflow: one parent run a recipe, a nested run a stage, models with aliases.

Metrics go through a queue and a thread, so a body never waits for MLflow and never fails with it:
while the server is down points are kept, and `flush` gives up after a bound with one warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

from infra.errors import InfrastructureError, TributaryError
from infra.mlflow_rest import Metric, MlflowRefused, MlflowRest

_log = logging.getLogger(__name__)
_BATCH_SECONDS = 0.5
_RETRY_SECONDS = 2.0


class Tracked(Protocol):
    """What tracking needs to know of an artifact (`infra.manifest.ArtifactRecord`)."""

    @property
    def kind(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def mlflow_run_id(self) -> str: ...


class Tracker:
    """One experiment of one MLflow server.

    Calls that return an id are direct and raise InfrastructureError when the server is down; `log`
    and `dataset` are queued.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri = uri.rstrip("/")
        self._experiment_name = experiment
        self._rest = MlflowRest(uri)
        self._experiment = ""
        self._sender = _Sender(uri)

    @property
    def experiment(self) -> str:
        if not self._experiment:
            self._experiment = self._rest.experiment(self._experiment_name)
        return self._experiment

    def url(self, run_id: str = "") -> str:
        """Page of a run, or of the experiment's runs side by side."""
        page = f"{self.uri}/#/experiments/{self.experiment}/runs"
        return f"{page}/{run_id}" if run_id else page

    def compare_url(self, run_ids: Sequence[str]) -> str:
        """Page that lays these runs' metrics and curves over each other."""
        runs, experiments = (quote(json.dumps(ids)) for ids in (list(run_ids), [self.experiment]))
        return f"{self.uri}/#/compare-runs?runs={runs}&experiments={experiments}"

    def parent_run(
        self, recipe_run: str, name: str, params: Mapping[str, object], tags: Mapping[str, str]
    ) -> str:
        """The run of a whole recipe, found again by its run name when it is resumed."""
        identity = {"tributary.run": recipe_run, "tributary.role": "recipe"}
        run_id = self._rest.find_run(self.experiment, identity)
        if run_id is None:
            run_id = self._rest.create_run(self.experiment, name, {**tags, **identity})
            self._rest.log_batch(run_id, params={k: str(v) for k, v in params.items()})
        else:
            self._rest.update_run(run_id, "RUNNING")
        return run_id

    def stage_run(self, parent: str, stage: str, digest: str, tags: Mapping[str, str]) -> str:
        """The nested run of a stage, found again by its digest when the stage is resumed."""
        identity = {"mlflow.parentRunId": parent, "tributary.digest": digest}
        identity["tributary.stage"] = stage
        run_id = self._rest.find_run(self.experiment, identity)
        if run_id is None:
            return self._rest.create_run(self.experiment, stage, {**tags, **identity})
        self._rest.update_run(run_id, "RUNNING")
        return run_id

    def cached_stage(self, parent: str, stage: str, record: Tracked) -> str:
        """A nested run for a stage that another run made: its metrics and a link to the origin."""
        tags = {"tributary.kind": record.kind, "tributary.cached": "true"}
        if record.mlflow_run_id:
            tags["tributary.origin_run"] = record.mlflow_run_id
            tags["mlflow.note.content"] = f"Cached: made by {self.url(record.mlflow_run_id)}"
        run_id = self.stage_run(parent, stage, record.digest, tags)
        self.log(run_id, 0, {f"final/{k}": v for k, v in record.metrics.items()})
        self._rest.update_run(run_id, "FINISHED")
        return run_id

    def log(self, run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        """Queue one step's metrics. A step that the run already has is not logged twice."""
        now = int(time.time() * 1000)
        self._sender.put(run_id, [Metric(k, _finite(v), step, now) for k, v in metrics.items()])

    def dataset(self, run_id: str, name: str, rows: int, source: str) -> None:
        """Record a dataset as an input of the run."""
        try:
            digest = hashlib.sha256(f"{name} {rows} {source}".encode()).hexdigest()
            self._rest.log_dataset(run_id, name, digest, source, rows)
        except TributaryError as error:
            _log.warning("dataset %s is not recorded: %s", name, error)

    def finish(self, run_id: str, status: str) -> None:
        """`status` is FINISHED, FAILED or KILLED. A server that is down costs only a warning."""
        try:
            self._rest.update_run(run_id, status)
        except TributaryError as error:
            _log.warning("run %s is not marked %s: %s", run_id, status, error)

    def register_model(self, name: str, record: Tracked, alias: str) -> str:
        """Register an artifact as a version of a model and point an alias at it; -> version.

        The version's source is a pointer among the run's artifacts: MLflow refuses sources on a
        file system outside the run. The pointer and a tag name the artifact's own URL.
        """
        pointer = {"kind": record.kind, "digest": record.digest, "url": record.url}
        uri = self._rest.run(record.mlflow_run_id)["info"]["artifact_uri"]
        source = self._rest.upload(uri, "model/artifact.json", json.dumps(pointer).encode())
        version = self._rest.model_version(
            name, source, record.mlflow_run_id, {"tributary.url": record.url}, record.digest
        )
        self._rest.alias(name, alias, version)
        return version

    def flush(self, timeout: float = 20.0) -> bool:
        """Wait until the queue is delivered; False (and a warning) when the bound passed first."""
        return self._sender.flush(timeout)


class _Sender:
    """The queue and its thread; the thread starts with the first point."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._queue: queue.Queue[tuple[str, list[Metric]]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._changed = threading.Condition()
        self._seen: dict[tuple[str, str], int] = {}
        self._keys: dict[str, set[str]] = {}

    def put(self, run_id: str, metrics: list[Metric]) -> None:
        with self._changed:
            self._pending += 1
        self._queue.put((run_id, metrics))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mlflow-sender", daemon=True)
            self._thread.start()

    def flush(self, timeout: float) -> bool:
        with self._changed:
            done = self._changed.wait_for(lambda: self._pending == 0, timeout)
        if not done:
            _log.warning("%d metric batches never reached MLflow at %s", self._pending, self._uri)
        return done

    def _run(self) -> None:
        rest = MlflowRest(self._uri)
        warned = False
        while True:
            taken = [self._queue.get()]
            deadline = time.monotonic() + _BATCH_SECONDS
            while (left := deadline - time.monotonic()) > 0:
                try:
                    taken.append(self._queue.get(timeout=left))
                except queue.Empty:
                    break
            while not self._deliver(rest, taken):
                if not warned:
                    _log.warning("MLflow at %s is down; metrics wait in memory", self._uri)
                    warned = True
                time.sleep(_RETRY_SECONDS)
            with self._changed:
                self._pending -= len(taken)
                self._changed.notify_all()

    def _deliver(self, rest: MlflowRest, taken: list[tuple[str, list[Metric]]]) -> bool:
        by_run: defaultdict[str, list[Metric]] = defaultdict(list)
        for run_id, metrics in taken:
            by_run[run_id] += metrics
        try:
            for run_id, metrics in by_run.items():
                fresh = [m for m in metrics if m.step > self._logged(rest, run_id, m.key)]
                rest.log_batch(run_id, fresh)
                for m in fresh:
                    self._seen[run_id, m.key] = max(self._seen[run_id, m.key], m.step)
        except InfrastructureError:
            return False
        except MlflowRefused as error:
            _log.warning("%d metric batches are dropped: %s", len(taken), error)
        return True

    def _logged(self, rest: MlflowRest, run_id: str, key: str) -> int:
        """Highest step of this metric that the server has; asked once a metric."""
        if (run_id, key) not in self._seen:
            if run_id not in self._keys:
                data = rest.run(run_id).get("data", {})
                self._keys[run_id] = {m["key"] for m in data.get("metrics", [])}
            known = key in self._keys[run_id]
            self._seen[run_id, key] = rest.last_step(run_id, key) if known else -1
        return self._seen[run_id, key]


def _finite(value: float) -> float:
    """MLflow stores no infinity; NaN is kept as it is a fact about the step."""
    return value if not math.isinf(value) else math.copysign(1.7976931348623157e308, value)
