"""Entries for MLflow, kept on disk until they are sent: in order, each exactly once.

    HOME/spool/mlflow/<time>-<pid>.jsonl    a process's entries, locked while it lives

An entry is written before it is sent. A process that dies, or ends while the server is down, leaves
its file; the next one of this home that has something to send, or `tributary up`, sends it first.
A point whose metric already has its step is left out, so a file may be sent twice.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from infra.errors import InfrastructureError
from infra.home import home
from infra.tracking.rest import Metric, MlflowRefused, MlflowRest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeferredRun:
    """A run that could not be made yet: found by its tags, or made, when MLflow answers."""

    experiment: str
    """id"""
    name: str
    identity: Mapping[str, str]
    """tags that no other run has"""
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict[str, str])


RunRef: TypeAlias = str | DeferredRun
"""an MLflow run's id, or a run that has none yet"""


@dataclass(frozen=True, slots=True)
class Entry:
    """Points of a run, or the status that it ends with."""

    run: RunRef
    metrics: Sequence[Metric] = ()
    status: str = ""


@dataclass(slots=True)
class SpoolFile:
    """The entries of this process. One thread at a time; made with its first entry."""

    _file: IO[bytes] | None = None
    _path: Path = field(default_factory=Path)

    def append(self, entry: Entry) -> None:
        """Raises OSError when the home is full or read-only."""
        if self._file is None:
            folder = spool_folder()
            folder.mkdir(parents=True, exist_ok=True)
            self._path = folder / f"{time.time_ns()}-{os.getpid()}.jsonl"
            self._file = self._path.open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write(json.dumps(asdict(entry)).encode() + b"\n")
        self._file.flush()

    def clear(self) -> None:
        """All of it was sent."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


class Delivery:
    """Sends entries to one server; knows what the server has. For one thread."""

    def __init__(self, uri: str) -> None:
        self._rest = MlflowRest(uri)
        self._ids: dict[str, str] = {}
        self._keys: dict[str, set[str]] = {}
        self._steps: dict[tuple[str, str], set[int]] = {}

    def send(self, entries: Sequence[Entry]) -> None:
        """Raises InfrastructureError when the server is down: send all of them again then."""
        grouped: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            grouped[json.dumps(_reference(entry.run), sort_keys=True)].append(entry)
        for reference, told in grouped.items():
            try:
                self._send_run(self._id_of(reference, told[0].run), told)
            except MlflowRefused as error:
                _log.warning("%d entries for MLflow are dropped: %s", len(told), error)
            except InfrastructureError:  # what it has is asked again: others send meanwhile
                self._keys.clear()
                self._steps.clear()
                raise

    def send_left(self) -> int:
        """Send what ended processes of this home left, oldest first; -> how many entries.

        Raises InfrastructureError when the server is down.
        """
        sent = 0
        with _alone():
            for path in sorted(spool_folder().glob("*.jsonl")):
                with _abandoned(path) as file:
                    if file is None:
                        continue
                    entries = list(_read(file))
                    self.send(entries)
                    path.unlink()
                    sent += len(entries)
        return sent

    def _send_run(self, run: str, entries: Sequence[Entry]) -> None:
        fresh: list[Metric] = []
        for metric in (m for entry in entries for m in entry.metrics):
            known = self._known(run, metric.key)
            if metric.step not in known:
                known.add(metric.step)
                fresh.append(metric)
        self._rest.log_batch(run, fresh)
        for entry in entries:
            if entry.status:
                self._rest.update_run(run, entry.status)

    def _known(self, run: str, key: str) -> set[int]:
        """Steps of this metric that the server has; asked once a metric."""
        if (run, key) not in self._steps:
            if run not in self._keys:
                data = self._rest.run(run).get("data", {})
                self._keys[run] = {m["key"] for m in data.get("metrics", [])}
            there = key in self._keys[run]
            self._steps[run, key] = self._rest.steps(run, key) if there else set()
        return self._steps[run, key]

    def _id_of(self, reference: str, run: RunRef) -> str:
        if isinstance(run, str):
            return run
        if reference not in self._ids:
            found = self._rest.find_run(run.experiment, run.identity)
            if found is None:
                tags = {**run.tags, **run.identity}
                found = self._rest.create_run(run.experiment, run.name, tags)
                self._rest.log_batch(found, params=run.params)
            self._ids[reference] = found
        return self._ids[reference]


def spool_folder() -> Path:
    return home() / "spool" / "mlflow"


def deliver_spool(uri: str) -> int:
    """Send what ended processes left, unless the server is down; -> how many entries."""
    try:
        return Delivery(uri).send_left()
    except InfrastructureError:
        return 0


@contextmanager
def _alone() -> Generator[None]:
    """One process at a time sends what was left, so that none of it is sent by two."""
    spool_folder().mkdir(parents=True, exist_ok=True)
    folder = os.open(spool_folder(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _abandoned(path: Path) -> Generator[IO[bytes] | None]:
    """The file of a process that ended; None while its process lives."""
    try:
        file = path.open("rb")
    except FileNotFoundError:  # its process sent it itself
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file


def _read(file: IO[bytes]) -> Generator[Entry]:
    """The complete entries of a file; its last line may be incomplete."""
    for line in file:
        try:
            raw: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        run = raw["run"] if isinstance(raw["run"], str) else DeferredRun(**raw["run"])
        yield Entry(run, [Metric(**m) for m in raw["metrics"]], raw["status"])


def _reference(run: RunRef) -> object:
    return run if isinstance(run, str) else asdict(run)
