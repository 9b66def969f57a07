"""One durable stage, without Prefect:

    look-up -> done, or: newest attempt alive? -> follow it : claim the next -> submit -> follow

Runs that need the same stage at the same time, from this home or another, share one job: the first
claim in the store wins. An attempt is over when its `end.json` says so, when its job is over, or,
if we cannot query the job, when its heartbeat has not changed for a minute.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from infra import errors
from infra.errors import BAD_INPUT, OutOfMemory, StageFailed, StorageError, TributaryError
from infra.processes.memory import kernel_kills, memory_words
from infra.processes.secret_file import hand_over, withdraw
from infra.secret_references import RunSecrets
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.store import Store
from infra.tracking.spool import DeferredRun
from infra.user_files import UserFiles
from tasks.durable.claims import Claim, Claims, End, Owner
from tasks.durable.launch import PART_OF_JOB, Launcher, job_command, log_path
from tasks.durable.memory_advice import memory_advice
from tasks.durable.protocol import JobInput, JobWatcher, dispatch, job_path
from tasks.stage import Resources, StageResources, StageSpec
from tasks.stage_kinds import name_of

MAX_TRIES = 3
"""attempts of one run at a stage, for failures that may be temporary"""
EXPIRY_SECONDS = 60.0
"""silence after which a heartbeat that we only see through the store counts as dead"""
SILENT_SECONDS = 120.0
"""silence after which a job that we can reach is stopped; its own way to the store may be slow"""
BEGIN_SECONDS = 600.0
"""what such a job may take to its first heartbeat"""
SUBMIT_SECONDS = 10.0
"""what a claim's owner may take until its job is known"""
IN_FLIGHT_SECONDS = 2.0
"""the same if the owner is dead: only what it had already sent can still arrive"""
RETRY_SECONDS = 2.0
"""wait before the second attempt; each further one waits `RETRY_GROWTH` times as long"""
RETRY_GROWTH = 5.0
LONGEST_RETRY_SECONDS = 60.0
TAIL_LINES = 15
JOB_LOST = "JobLost"
_log = logging.getLogger(__name__)


class StageStopped(Exception):
    """The stage's job ended after a checkpoint because someone asked it to."""


class StageLetGo(Exception):
    """The stage's job continues without us; the process that continues the run follows it."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """One stage with its inputs known, ready to be looked up or run."""

    name: str
    spec: StageSpec
    inputs: Mapping[str, ArtifactRecord]
    resources: StageResources
    digest: str
    mlflow_run: str = ""
    mlflow_deferred: DeferredRun | None = None
    """its run where MLflow did not answer"""
    again: str = ""
    """as in its identity"""


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run's stages are kept and run."""

    store: Store
    artifacts: ArtifactStore
    launcher: Launcher
    home_id: str
    run: str
    pool: Resources
    hooks: UserFiles = field(default_factory=UserFiles)
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """environment of the jobs: Ray's address, thread limits"""
    secrets: RunSecrets = field(default_factory=RunSecrets)
    """more of it, which is not shown; each job gets what it needs"""
    mlflow_uri: str = ""
    mlflow_experiment: str = ""
    system_metrics_s: float = 0.0
    """as in a job's input"""
    cancelled: threading.Event = field(default_factory=threading.Event)
    claimed: set[str] = field(default_factory=set[str])
    """jobs of claims that this process has made, or is making"""
    let_go: threading.Event = field(default_factory=threading.Event)
    """the run continues elsewhere, or later: its jobs keep running, and none is started"""
    poll_seconds: float = 0.5
    expiry_seconds: float = EXPIRY_SECONDS
    silent_seconds: float = SILENT_SECONDS
    begin_seconds: float = BEGIN_SECONDS
    retry_seconds: float = RETRY_SECONDS


def run_stage(work: StageWork, place: RunPlace, watch: JobWatcher) -> tuple[ArtifactRecord, bool]:
    """The stage's artifact, and whether it was there before we came.

    Raises `StageFailed` with the cause and the log's path, `StageStopped` or `StageLetGo`.
    """
    found = place.artifacts.find(work.spec.kind, work.digest)
    if found is not None:
        return found, True
    claims = Claims(place.store, work.spec.kind, work.digest)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    for tries in range(1, MAX_TRIES + 1):
        claim = _live_or_new(work, place, claims)
        end = _follow(work, place, claims, claim, _Tail(watch, tail))
        found = place.artifacts.find(work.spec.kind, work.digest)
        if found is not None:
            if end.outcome != "done":
                place.artifacts.tidy(work.spec.kind, work.digest)
            return found, False
        stopped = end.outcome == "stopped"
        if place.cancelled.is_set() or (stopped and claim.owner.run == place.run):
            raise StageStopped(f"stage {work.name} stopped; its last checkpoint is kept")
        if not stopped and (not end.retryable or tries == MAX_TRIES):
            raise StageFailed(_failure(work, place, claim, end, tail))
        wait = 0.0 if stopped else pause_after(tries, place.retry_seconds)
        again = f"trying again in {wait:g} s" if wait else "trying again"
        watch.warn(f"attempt {claim.number} is lost ({end.message}); {again}")
        tail.clear()
        _pause(work, place, wait)
    raise StageFailed(
        f"stage {work.name}: stopped {MAX_TRIES} times by other runs; try again later"
    )


def pause_after(tries: int, first: float) -> float:
    """Seconds between attempt `tries` of a run and its next one: what broke may need a moment."""
    return min(first * RETRY_GROWTH ** (tries - 1), LONGEST_RETRY_SECONDS)


def _pause(work: StageWork, place: RunPlace, seconds: float) -> None:
    """Raises StageStopped or StageLetGo when the run ends meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        _unless_let_go(work, place)
        if place.cancelled.wait(min(place.poll_seconds, left)):
            raise StageStopped(f"stage {work.name} stopped; its last checkpoint is kept")


def is_under_way(place: RunPlace, kind: str, digest: str) -> bool:
    """Return whether an attempt at the stage has started and is not over."""
    claims = Claims(place.store, kind, digest)
    newest = claims.latest()
    return newest is not None and newest.end is None and not _known_dead(place, claims, newest)


def job_id(run: str, work: StageWork, root: str, attempt: int) -> str:
    """Ray submission id, by which a person knows the run and the stage.

    The store's root keeps two stores on one cluster apart.
    """
    store = hashlib.sha256(root.encode()).hexdigest()[:6]
    kind, digest = work.spec.kind, work.digest[:12]
    return PART_OF_JOB.join((run, work.name, f"{kind}-{digest}-{store}-a{attempt}"))


def _live_or_new(work: StageWork, place: RunPlace, claims: Claims) -> Claim:
    """The newest attempt while nothing says that it is over; else a new one of ours."""
    while True:
        _unless_let_go(work, place)
        if place.cancelled.is_set():
            raise StageStopped(f"stage {work.name} was not started")
        newest = claims.latest()
        if newest is not None and newest.end is None and not _known_dead(place, claims, newest):
            return newest
        number = 1 if newest is None else newest.number + 1
        job = job_id(place.run, work, place.store.root, number)
        place.claimed.add(job)
        owner = Owner(home=place.home_id, launcher=place.launcher.name, job=job, run=place.run)
        claim = claims.take(number, owner)
        if claim is not None:
            _submit(work, place, claims, claim)
            return claim


def _known_dead(place: RunPlace, claims: Claims, claim: Claim) -> bool:
    """Return whether an attempt of our own home has no live job; others are judged by their
    heartbeat.
    """
    if not _reachable(place, claim):
        return False
    began = time.monotonic()
    # A run has one process at a time: what it claimed without us, a process did that is gone.
    is_orphan = claim.owner.run == place.run and claim.owner.job not in place.claimed
    bound = IN_FLIGHT_SECONDS if is_orphan else SUBMIT_SECONDS
    # Between a claim and its submission the job is unknown; so it is when Ray's head was lost.
    while (state := place.launcher.state(claim.owner.job)) == "unknown":
        if time.monotonic() - began > bound or claims.pulse(claim.number):
            return True
        place.cancelled.wait(place.poll_seconds)
    return state == "over"


def _reachable(place: RunPlace, claim: Claim) -> bool:
    return (claim.owner.home, claim.owner.launcher) == (place.home_id, place.launcher.name)


def _submit(work: StageWork, place: RunPlace, claims: Claims, claim: Claim) -> None:
    given = JobInput(
        job=claim.owner.job,
        stage=work.name,
        run=claim.owner.run,
        kind=work.spec.kind,
        spec_name=name_of(work.spec),
        spec=work.spec.model_dump(mode="json"),
        digest=work.digest,
        again=work.again,
        attempt=claim.number,
        inputs=dict(work.inputs),
        resources=work.resources,
        pool=place.pool,
        hooks=place.hooks,
        mlflow_uri=place.mlflow_uri,
        mlflow_experiment=place.mlflow_experiment,
        mlflow_run=work.mlflow_run,
        mlflow_deferred=work.mlflow_deferred,
        system_metrics_s=place.system_metrics_s,
    )
    try:
        place.store.write(job_path(given.job), given.model_dump_json().encode())
        stage = given.model_dump(mode="json", include={"spec", "resources"})
        hand_over(given.job, place.secrets.needed_by(stage))
        place.launcher.submit(given.job, job_command(place.store.root, given.job), place.env)
    except Exception as error:
        if _is_there(place, given.job):
            return  # its reply was lost
        withdraw(given.job)
        claims.finish(
            claim.number,
            End(outcome="failed", error=type(error).__name__, message=str(error), retryable=True),
        )
        raise


def _is_there(place: RunPlace, job: str) -> bool:
    with suppress(TributaryError):
        return place.launcher.state(job) != "unknown"
    return False


def _follow(work: StageWork, place: RunPlace, claims: Claims, claim: Claim, watch: _Tail) -> End:
    """Wait until the attempt is over, one way or another, and say how."""
    job, mine = claim.owner.job, claim.owner.run == place.run
    kills = kernel_kills()
    watch.started(job, claim.number, mine)
    if place.cancelled.is_set() and mine:
        place.launcher.stop(job)  # who cancelled the run may have looked before this was on record
    if _reachable(place, claim):
        with _vigil(place, claims, claim):
            place.launcher.follow(job, lambda line: dispatch(job, line, watch), place.let_go)
        _unless_let_go(work, place)
        withdraw(job)
    else:
        watch.line(f"attempt {claim.number} runs elsewhere (run {claim.owner.run}); waiting for it")
        _wait_elsewhere(work, place, claims, claim)
        _unless_let_go(work, place)
    end = claims.end_of(claim.number)
    if end is None and place.cancelled.is_set() and not mine:
        raise StageStopped(f"stage {work.name}: left to the run {claim.owner.run} that started it")
    if end is None:
        said = memory_words(watch.lines)
        end = _lost(work, place, by_kernel=kernel_kills() > kills, said=said)
        claims.finish(claim.number, end)
    return end


def _lost(work: StageWork, place: RunPlace, *, by_kernel: bool, said: str = "") -> End:
    """The end of a job that could not write down one; `said`: what its log says of memory."""
    if said and not by_kernel:  # another try may find more: Ray looks at the whole machine
        message = (
            f"the machine ran short of memory, and a process was killed: {said}. Let less run"
            " beside it (resources.concurrent_stages, other programs), or lower"
            " trainer.micro_batch_tokens or fleet.max_total_tokens"
        )
        return End(outcome="failed", error=JOB_LOST, retryable=True, message=message)
    if not by_kernel:
        message = "its job ended without a word: the job was killed, or its machine restarted"
        return End(outcome="failed", error=JOB_LOST, retryable=True, message=message)
    settings = work.spec.model_dump(mode="json").get("settings", {})
    advice = memory_advice(work.name, settings, work.resources, place.pool)
    message = f"its job ended when the kernel killed a process for lack of memory\n{advice}"
    return End(outcome="failed", error=OutOfMemory.__name__, message=message)


def _unless_let_go(work: StageWork, place: RunPlace) -> None:
    if place.let_go.is_set():
        raise StageLetGo(f"stage {work.name} is left to whoever continues run {place.run}")


@contextmanager
def _vigil(place: RunPlace, claims: Claims, claim: Claim) -> Generator[None]:
    """Stop a job that Ray reports as running but that writes no heartbeat: it hangs."""
    over = threading.Event()

    def watch() -> None:
        pulse, changed = b"", time.monotonic()
        while not over.wait(place.silent_seconds / 12):
            latest = claims.pulse(claim.number)
            if latest != pulse:
                pulse, changed = latest, time.monotonic()
            # None: it has not begun, or the store does not answer
            bound = place.silent_seconds if latest else place.begin_seconds
            if time.monotonic() - changed > bound:
                try:
                    place.launcher.stop(claim.owner.job)
                    return
                except TributaryError as error:
                    _log.warning("job %s hangs and is not stopped yet: %s", claim.owner.job, error)

    threading.Thread(target=watch, name="vigil", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _wait_elsewhere(work: StageWork, place: RunPlace, claims: Claims, claim: Claim) -> None:
    """Wait for a job that we see only through the store."""
    pulse, changed = claims.pulse(claim.number), time.monotonic()
    while time.monotonic() - changed < place.expiry_seconds:
        if place.cancelled.is_set() or place.let_go.is_set():
            return
        try:
            if claims.end_of(claim.number) or place.artifacts.find(work.spec.kind, work.digest):
                return
        except StorageError as error:  # for longer than a moment it is silence
            if not error.retryable:
                raise
        latest = claims.pulse(claim.number)
        if latest != pulse:
            pulse, changed = latest, time.monotonic()
        place.cancelled.wait(place.poll_seconds)


def _failure(work: StageWork, place: RunPlace, claim: Claim, end: End, tail: deque[str]) -> str:
    """The cause, where to read on, what to do: one screen. Tracebacks stay in the log."""
    told = end.message if hasattr(errors, end.error) else f"{end.error}: {end.message}"
    lines = [
        f"stage {work.name} failed: {told}",
        f"attempt {claim.number}; its log: {log_path(claim.owner.job)}",
    ]
    if end.error == JOB_LOST:  # its log is all that is known
        lines += [f"  | {line}" for line in tail] or ["  | (not on this machine)"]
    if end.exit_code == BAD_INPUT:
        lines.append(
            "repair the cause that is named, then run the recipe again; finished stages stay cached"
        )
    elif end.error != OutOfMemory.__name__:
        lines.append(f"resume with: tributary resume {place.run}")
    return "\n".join(lines)


@dataclass(slots=True)
class _Tail:
    """A watch that also keeps the last lines, for the message of a failure."""

    inner: JobWatcher
    lines: deque[str]

    def line(self, text: str) -> None:
        self.lines.append(text)
        self.inner.line(text)

    def progress(self, done: int, total: int, message: str) -> None:
        self.inner.progress(done, total, message)

    def warn(self, message: str) -> None:
        self.lines.append(f"warning: {message}")
        self.inner.warn(message)

    def started(self, job: str, attempt: int, mine: bool) -> None:
        self.inner.started(job, attempt, mine)
