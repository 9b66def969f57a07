"""Entries for MLflow, kept on disk until they are sent: in order, each exactly once.

    HOME/spool/mlflow/<time>-<pid>.jsonl    a process's entries, locked while it lives

An entry is written before it is sent. A process that dies, or ends while the server is down, leaves
its file; the next one of this home that has something to send, or `tributary up`, sends it first.
A point whose metric already has its step is left out, so a file may be sent twice.

One entry that MLflow cannot take costs that entry only: it is set aside (`refusals.py`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

from infra.errors import InfrastructureError
from infra.home import home
from infra.tracking.params import MlflowKeys
from infra.tracking.refusals import Refusals
from infra.tracking.rest import Metric, MlflowFailed, MlflowRefused, MlflowRest

_LINES_AT_ONCE = 20
"""of a file that another process left: it may be as long as the server was down"""
_FAILURES = 3
"""answers with an error of the server's own that are taken for its being busy"""
_log = logging.getLogger(__name__)


class KnownSteps:
    """Kept as runs of steps that are equally far apart: a metric of every step, or of every tenth,
    is one run, however long it is. Nothing is known of steps before `since`."""

    def __init__(self, steps: Iterable[int] = (), since: int = 0) -> None:
        self.since = since
        self._runs: list[range] = []
        self._highest = 0
        for step in sorted(set(steps)):
            self.add(step)

    def __contains__(self, step: int) -> bool:
        """At once for a step above all others, which almost every new one is."""
        if not self._runs or step > self._highest:
            return False
        return any(step in run for run in reversed(self._runs))

    def add(self, step: int) -> None:
        """Take in a step that is not there."""
        self._highest = max(step, self._highest) if self._runs else step
        last = self._runs[-1] if self._runs else range(0)
        if len(last) == 1 and step > last[0]:
            self._runs[-1] = range(last[0], step + 1, step - last[0])
        elif len(last) > 1 and step == last[-1] + last.step:
            self._runs[-1] = range(last[0], step + 1, last.step)
        else:
            self._runs.append(range(step, step + 1))


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
            self._file = self._opened()
        self._file.write(json.dumps(asdict(entry)).encode() + b"\n")
        self._file.flush()

    def _opened(self) -> IO[bytes]:
        folder = spool_folder()
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            self._path = folder / f"{time.time_ns()}-{os.getpid()}.jsonl"
            file = self._path.open("ab")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file
            file.close()  # before it had its lock, another process took it for left behind

    def clear(self) -> None:
        """Empty the file: all of it was sent."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # what a full disk did not take is written once more
                file.close()
            self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Leave what was not sent to whoever sends next."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()


class Delivery:
    """Sends entries to one server; knows what the server has. For one thread."""

    def __init__(self, uri: str, refusals: Refusals) -> None:
        self._rest = MlflowRest(uri)
        self._refusals = refusals
        self._names = MlflowKeys()
        self._ids: dict[str, str] = {}
        self._latest: dict[str, dict[str, int]] = {}
        """by run, the last step of each metric that the server had when it was asked"""
        self._steps: dict[tuple[str, str], KnownSteps] = {}
        self._failures: Counter[str] = Counter()
        """how often in a row the server answered a run's metrics with an error of its own"""

    def send(self, entries: Sequence[Entry]) -> None:
        """Raises InfrastructureError when the server is down: send all of them again then."""
        grouped: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            grouped[json.dumps(_reference(entry.run), sort_keys=True)].append(entry)
        for reference, told in grouped.items():
            try:
                self._send_run(reference, told)
            except InfrastructureError:  # what it has is asked again: others send meanwhile
                self._latest.clear()
                self._steps.clear()
                raise
            except Exception as error:  # one run's entries must not keep those of all others
                self._refusals.add(told, error)

    def send_left(self) -> int:
        """Send what ended processes of this home left, oldest first; -> how many entries.

        Raises InfrastructureError when the server is down.
        """
        sent = 0
        with _alone():
            for path in sorted(spool_folder().glob("*.jsonl")):
                try:
                    sent += self._send_file(path)
                except InfrastructureError:
                    raise
                except Exception as error:  # one file must not keep all others
                    self._refusals.add_file(path, error)
        return sent

    def _send_file(self, path: Path) -> int:
        with _abandoned(path) as file:
            if file is None:
                return 0
            sent = 0
            while lines := list(islice(file, _LINES_AT_ONCE)):
                entries, unreadable = _read(lines)
                self.send(entries)
                for line, reason in unreadable:
                    self._refusals.add_line(line, reason)
                sent += len(entries)
            path.unlink()
            return sent

    def _send_run(self, reference: str, entries: Sequence[Entry]) -> None:
        run = self._id_of(reference, entries[0].run)
        self._send_metrics(run, self._fresh(run, entries))
        self._failures.pop(run, None)
        for entry in entries:
            if entry.status:
                try:
                    self._rest.update_run(run, entry.status)
                except MlflowRefused as error:
                    self._refusals.add([entry], error)

    def _fresh(self, run: str, entries: Sequence[Entry]) -> list[Metric]:
        """Points that the server does not have, under names that it takes."""
        fresh: list[Metric] = []
        for metric in (m for entry in entries for m in entry.metrics):
            key = self._names.of(metric.key)
            known = self._known(run, key, metric.step)
            if metric.step not in known:
                known.add(metric.step)
                fresh.append(replace(metric, key=key))
        return fresh

    def _send_metrics(self, run: str, metrics: Sequence[Metric]) -> None:
        """Together; when that is refused, by halves, until those are found that are refused
        alone."""
        if not metrics:
            return
        try:
            self._rest.log_metrics(run, metrics)
            return
        except MlflowFailed as error:
            self._failures[run] += 1
            if self._failures[run] <= _FAILURES:
                raise
            # It fails again and again; if it does something else for the same run, it is not busy.
            self._rest.tag_run(run, {"tributary.entries": "some were refused"})
            reason: Exception = error
        except InfrastructureError:
            raise
        except Exception as error:
            reason = error
        if len(metrics) == 1:
            self._refusals.add([Entry(run, metrics)], reason)
            return
        self._require_run(run)
        middle = len(metrics) // 2
        self._send_metrics(run, metrics[:middle])
        self._send_metrics(run, metrics[middle:])

    def _require_run(self, run: str) -> dict[str, Any]:
        """Raises MlflowRefused when the run is gone: then there is nothing to try one by one."""
        found = self._rest.run(run)
        if found["info"].get("lifecycle_stage") == "deleted":
            raise MlflowRefused(f"somebody deleted the run {run} in MLflow")
        return found

    def _known(self, run: str, key: str, step: int) -> KnownSteps:
        """Steps of this metric that the server has, from `step` on: asked for once a metric, and
        again before an earlier step."""
        if run not in self._latest:
            data = self._require_run(run).get("data", {})
            self._latest[run] = {m["key"]: int(m.get("step", 0)) for m in data.get("metrics", [])}
        last = self._latest[run].get(key, step - 1)
        known = self._steps.setdefault((run, key), KnownSteps(since=last + 1))
        if step < known.since:
            for each in sorted(self._rest.steps(run, key, step, known.since - 1)):
                known.add(each)
            known.since = step
        return known

    def _id_of(self, reference: str, run: RunRef) -> str:
        if isinstance(run, str):
            return run
        if reference not in self._ids:
            found = self._rest.find_run(run.experiment, run.identity)
            if found is None:
                tags = {**run.tags, **run.identity}
                found = self._rest.create_run(run.experiment, run.name, tags)
                log_params(self._rest, found, run.params)
            self._ids[reference] = found
        return self._ids[reference]


def log_params(rest: MlflowRest, run: str, params: Mapping[str, str]) -> None:
    """Together; when that is refused, one by one, with a warning of those that are refused."""
    try:
        rest.log_params(run, params)
    except MlflowRefused as error:
        if len(params) == 1:
            _log.warning("the param %s is not in MLflow: %s", *params, error)
            return
        for key, value in params.items():
            log_params(rest, run, {key: value})


def spool_folder() -> Path:
    return home() / "spool" / "mlflow"


def deliver_spool(uri: str) -> tuple[int, str]:
    """Send what ended processes left, unless the server is down; -> how many entries were sent, and
    what is to be said of those that MLflow does not take."""
    refusals = Refusals()
    sent = 0
    with suppress(InfrastructureError):
        sent = Delivery(uri, refusals).send_left()
    return sent, refusals.summary()


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


def _read(lines: Iterable[bytes]) -> tuple[list[Entry], list[tuple[bytes, Exception]]]:
    """The complete entries of a file, and the lines that are none, each with the reason; its last
    line may be incomplete."""
    entries: list[Entry] = []
    unreadable: list[tuple[bytes, Exception]] = []
    for line in lines:
        try:
            entries.append(_entry(json.loads(line)))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            if line.endswith(b"\n"):
                unreadable.append((line, error))
    return entries, unreadable


def _entry(raw: dict[str, Any]) -> Entry:
    run = raw["run"] if isinstance(raw["run"], str) else DeferredRun(**raw["run"])
    return Entry(run, [Metric(**m) for m in raw["metrics"]], raw["status"])


def _reference(run: RunRef) -> object:
    return run if isinstance(run, str) else asdict(run)
