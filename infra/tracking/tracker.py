"""Tracking in MLflow: one parent run a recipe, a nested run a stage, models with aliases.

Metrics go through a queue, a file and a thread, so a body never waits for MLflow and never fails
with it: while the server is down they are kept on disk (`spool.py`), also beyond the process.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from infra.errors import InfrastructureError, TributaryError
from infra.json_text import numbers_of
from infra.tracking.pages import (
    VIEW_TAG,
    curves_page,
    run_page,
    runs_page,
    shared_view,
)
from infra.tracking.refusals import Refusals
from infra.tracking.rest import Dataset, Metric, MlflowRefused, MlflowRest
from infra.tracking.spool import (
    DeferredRun,
    Delivery,
    Entry,
    RunRef,
    SpoolFile,
    log_params,
    spool_folder,
)

_log = logging.getLogger(__name__)
NOTE = "mlflow.note.content"
"""tag of a run or an experiment that MLflow shows as its description"""
_BATCH_SECONDS = 0.5
_RETRY_SECONDS = 2.0
_IN_MEMORY = 1000
"""entries that wait there while the server is down; more than these wait on disk alone"""
_CLOSE_SECONDS = 5.0
"""for a request under way"""


class TrackedArtifact(Protocol):
    """What tracking needs to know of an artifact (`infra.store.manifest.ArtifactRecord`)."""

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
    and `finish` are queued.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri = uri.rstrip("/")
        self._experiment_name = experiment
        self._rest = MlflowRest(uri)
        self._experiment = ""
        self._refusals = Refusals()
        self._sender = _Sender(uri, self._refusals)

    @property
    def experiment(self) -> str:
        if not self._experiment:
            self._experiment = self._rest.experiment(self._experiment_name)
        return self._experiment

    def url(self, run_id: str = "") -> str:
        """Page of a run, or of the experiment's runs with their scores."""
        if run_id:
            return run_page(self.uri, self.experiment, run_id)
        return runs_page(self.uri, self.experiment)

    def curves_url(self, run_ids: Sequence[str], metrics: Sequence[str]) -> str:
        """Page that draws these runs' curves into one picture."""
        return curves_page(self.uri, self.experiment, run_ids, metrics)

    def show_columns(self, columns: Sequence[str], note: str) -> None:
        """What the experiment's page shows: columns of its table as `metrics.NAME`, beside those
        that it has, and a text."""
        before = self._rest.experiment_tags(self.experiment).get(VIEW_TAG, "")
        view = shared_view(columns, before)
        self._rest.tag_experiment(self.experiment, {VIEW_TAG: view, NOTE: note})

    def describe(self, run_id: str, note: str) -> None:
        """The run's description, in markdown; a later one replaces it."""
        self._rest.tag_run(run_id, {NOTE: note})

    def rename(self, run_id: str, name: str) -> None:
        """What lists of runs call it."""
        self._rest.rename_run(run_id, name)

    def knows(self, run_id: str) -> bool:
        """Return whether a run is on this server."""
        try:
            return bool(self._rest.run(run_id))
        except MlflowRefused:
            return False

    def parent_run(
        self, recipe_run: str, name: str, params: Mapping[str, object], tags: Mapping[str, str]
    ) -> str:
        """The run of a whole recipe, found again by its run name when it is resumed."""
        identity = {"tributary.run": recipe_run, "tributary.role": "recipe"}
        return self._begun(identity, name, tags, {k: str(v) for k, v in params.items()})

    def stage_run(
        self,
        parent: str,
        stage: str,
        digest: str,
        tags: Mapping[str, str],
        params: Mapping[str, str] | None = None,
    ) -> str:
        """The nested run of a stage, found again by its digest when the stage is resumed. Its
        params stay those that it was begun with."""
        return self._begun(_stage_identity(parent, stage, digest), stage, tags, params or {})

    def _begun(
        self,
        identity: Mapping[str, str],
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, str],
    ) -> str:
        """Return a run that goes on, found by its tags, or a new one."""
        run_id = self._rest.find_run(self.experiment, identity)
        if run_id is not None:
            self._rest.update_run(run_id, "RUNNING")
            return run_id
        run_id = self._rest.create_run(self.experiment, name, {**tags, **identity})
        log_params(self._rest, run_id, params)
        return run_id

    def later_stage_run(
        self,
        parent: str,
        stage: str,
        digest: str,
        tags: Mapping[str, str],
        params: Mapping[str, str] | None = None,
    ) -> DeferredRun:
        """Return the same run while the server is down: it is found or made with its first
        metrics."""
        identity = _stage_identity(parent, stage, digest)
        return DeferredRun(self.experiment, stage, identity, tags, params or {})

    def cached_stage(
        self,
        parent: str,
        stage: str,
        record: TrackedArtifact,
        params: Mapping[str, str] | None = None,
    ) -> str:
        """Return a nested run for a stage that another run made: its metrics and a link to the
        origin.
        """
        tags = {"tributary.kind": record.kind, "tributary.cached": "true"}
        if record.mlflow_run_id:
            tags["tributary.origin_run"] = record.mlflow_run_id
        run_id = self.stage_run(parent, stage, record.digest, tags, params)
        self.log(run_id, 0, final(record.metrics))
        self._rest.update_run(run_id, "FINISHED")
        return run_id

    def log(self, run: RunRef, step: int, metrics: Mapping[str, float]) -> None:
        """Queue one step's metrics. A step that the run already has is not logged twice; what is
        no number is left out, and `refused` tells of it."""
        now = int(time.time() * 1000)
        numbers, others = numbers_of(metrics)
        for name, kind in others.items():
            self._refusals.note(f"the metric {name}", f"a value of type {kind} is no number")
        points = [Metric(key, value, int(step), now) for key, value in numbers.items()]
        if points:
            self._sender.put(Entry(run, points))

    def datasets(self, run_id: str, datasets: Sequence[Dataset]) -> None:
        """Record datasets as inputs of the run."""
        try:
            if datasets:
                self._rest.log_datasets(run_id, datasets)
        except TributaryError as error:
            names = ", ".join(each.name for each in datasets)
            _log.warning("dataset %s is not recorded: %s", names, error)

    def finish(self, run: RunRef, status: str) -> None:
        """Queue the run's end: FINISHED, FAILED or KILLED."""
        self._sender.put(Entry(run, status=status))

    def model_tags(self, name: str) -> dict[str, str]:
        """Return the tags of a registered model; empty while there is none."""
        return self._rest.model_tags(name)

    def register_model(
        self, name: str, record: TrackedArtifact, alias: str, tags: Mapping[str, str]
    ) -> str:
        """Register an artifact as a version of a model and point an alias at it; -> version.

        The version's source is a pointer among the run's artifacts: MLflow refuses sources on a
        file system outside the run. The pointer and a tag name the artifact's own URL. `tags` are
        put on the model.
        """
        pointer = {"kind": record.kind, "digest": record.digest, "url": record.url}
        uri = self._rest.run(record.mlflow_run_id)["info"]["artifact_uri"]
        source = self._rest.upload(uri, "model/artifact.json", json.dumps(pointer).encode())
        version = self._rest.model_version(
            name, source, record.mlflow_run_id, {"tributary.url": record.url}, record.digest
        )
        self._rest.alias(name, alias, version)
        self._rest.tag_model(name, tags)
        return version

    def flush(self, timeout: float = 20.0) -> bool:
        """Wait until the queue is delivered; False (and a warning) when the server is down or the
        bound passed first: what is left is on disk."""
        return self._sender.flush(timeout)

    def close(self) -> None:
        """Send nothing more, and end the thread: what is left is on disk, for the next sender."""
        self._sender.close()

    def refused(self) -> str:
        """Return a sentence about what MLflow has not taken since this was asked before; empty: it
        took everything."""
        return self._refusals.summary()


class _Sender:
    """A queue, its copy on disk, and the thread (from the first entry on) that empties both."""

    def __init__(self, uri: str, refusals: Refusals) -> None:
        self._uri = uri
        self._refusals = refusals
        self._queue: queue.Queue[Entry | None] = queue.Queue()
        """None at its end"""
        self._is_closed = threading.Event()
        self._file = SpoolFile()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._on_disk = 0
        """entries that are in files of this process only, and no longer in the queue"""
        self._is_down = False
        self._is_kept = True
        """whether the home took the last entry"""
        self._reason = ""
        """why the server does not take what it is sent"""
        self._comes_after_others = True
        """whether an attempt that died meanwhile may have left points of the same runs"""
        self._changed = threading.Condition()

    def put(self, entry: Entry) -> None:
        with self._changed:
            if self._is_down and self._is_kept and self._queue.qsize() >= _IN_MEMORY:
                self._leave_on_disk()
            try:
                self._file.append(entry)
                self._is_kept = True
            except OSError as error:  # a full disk: it is still sent, unless this process dies
                if self._is_kept:
                    _log.warning("metrics are not kept in %s: %s", spool_folder(), error)
                self._is_kept = False
            self._pending += 1
            self._queue.put(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mlflow-sender", daemon=True)
                self._thread.start()

    def _leave_on_disk(self) -> None:
        """Keep what waits in its file alone, as a process does that ends: it is sent from there."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
                self._pending -= 1
                self._on_disk += 1
        self._file.release()
        self._comes_after_others = True

    def flush(self, timeout: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0 or self._is_down, timeout)
            left = self._pending + self._on_disk
            why = self._reason if self._is_down else "it is slow"
        if left:
            _log.warning(
                "MLflow at %s has not taken %d entries (%s): they wait in %s; the next run, or"
                " `tributary up`, sends them",
                self._uri, left, why, spool_folder(),
            )  # fmt: skip
        return not left

    def close(self) -> None:
        self._is_closed.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if not self._thread.is_alive():
                self._file.release()

    def _run(self) -> None:
        delivery = Delivery(self._uri, self._refusals)
        while (taken := self._take()) and not self._is_closed.is_set():
            while not self._deliver(delivery, taken):
                if self._is_closed.wait(_RETRY_SECONDS):
                    return
            with self._changed:
                self._pending -= len(taken)
                if self._pending == 0:
                    self._file.clear()
                self._changed.notify_all()

    def _take(self) -> list[Entry]:
        """What comes within a moment of the next entry; nothing once it is closed."""
        first = self._queue.get()
        taken = [first] if first is not None else []
        deadline = time.monotonic() + _BATCH_SECONDS
        while taken and (left := deadline - time.monotonic()) > 0:
            try:
                entry = self._queue.get(timeout=left)
            except queue.Empty:
                break
            if entry is None:
                break
            taken.append(entry)
        return taken

    def _deliver(self, delivery: Delivery, taken: list[Entry]) -> bool:
        try:
            if self._comes_after_others:
                with self._changed:
                    self._comes_after_others, on_disk = False, self._on_disk
                delivery.send_left()
                with self._changed:
                    self._on_disk -= on_disk
            delivery.send(taken)
        except (InfrastructureError, OSError) as error:
            if not self._is_down:
                _log.warning("metrics wait in %s: %s", spool_folder(), error)
            with self._changed:
                self._is_down = self._comes_after_others = True
                self._reason = str(error)
                self._changed.notify_all()
            return False
        self._is_down = False
        return True


def final(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return an artifact's own numbers, under names that come after the curves."""
    return {f"total.{name}": value for name, value in metrics.items()}


def _stage_identity(parent: str, stage: str, digest: str) -> dict[str, str]:
    return {
        "mlflow.parentRunId": parent,
        "tributary.digest": digest,
        "tributary.stage": stage,
    }
