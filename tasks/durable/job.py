"""What Ray runs for a stage: `python -P -m tasks.durable.job ROOT JOB`.

    JobInput from the store -> verified local inputs -> the body -> files uploaded -> manifest last

A heartbeat shows that the attempt lives, a watchdog ends one that does not get on. SIGTERM asks
the body to leave a checkpoint and stop; one that does not come to its next step in time is
cancelled, its last checkpoint counts. However it ends, the attempt's `end.json` says so: exit 0
done, 1 failed, 3 stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from infra.access import listening_host, reachable
from infra.code.identity import CodeIdentity
from infra.code.undeclared_reads import watch_reads
from infra.errors import (
    FencedOut,
    InputError,
    OutOfMemory,
    StageStalled,
    TrainingStopped,
    TributaryError,
)
from infra.home import SOURCE_ROOT
from infra.processes.coroutines import place_of
from infra.processes.leftovers import leftovers_of_dead, remove_leftovers
from infra.processes.memory import is_memory_error, kernel_kills, use_one_heap
from infra.processes.network import bypass
from infra.processes.secret_file import take_over
from infra.processes.work_folder import work_folder, work_path
from infra.secret_references import ask_program
from infra.store.artifacts import ArtifactRecord, ArtifactStore, StageCheckpoints
from infra.store.origins import Origin, note_origin
from infra.store.store import Store
from infra.user_files import InstalledFiles, install_hooks
from tasks.durable.claims import Claims, End
from tasks.durable.memory_advice import Whose, memory_advice
from tasks.durable.protocol import JobInput, emit, job_path
from tasks.durable.reporter import JobReporter, open_reporter, saying_outages
from tasks.durable.stage_identity import StageIdentity, StoredResults, stage_identity
from tasks.durable.watchdog import WatchedCheckpoints, watchdog
from tasks.stage import Pulse, StageContext, StageSpec, StopFlag, Stopped
from tasks.stage_kinds import body_of, spec_of

HEARTBEAT_SECONDS = 5.0
STOP_GRACE_SECONDS = 12.0
"""what a stage may take to its next step when it is asked to stop; within it, long steps end too"""
STOP_POLL_SECONDS = 0.5
EXIT_FAILED, EXIT_STOPPED = 1, 3


def main(root: str, job: str) -> int:
    """Run the job; returns its exit code."""
    use_one_heap()
    bypass(reachable(listening_host()))
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a model or a row says may be in a line
        sys.stdout.reconfigure(errors="backslashreplace")
    take_over(job)
    store = Store(root)
    given = JobInput.model_validate_json(store.read(job_path(job)))
    claims = Claims(store, given.kind, given.digest)
    stop, pulse = StopFlag(), Pulse()
    store.on_progress = pulse.beat  # a large model travels for longer than a stage may stand still
    signal.signal(signal.SIGTERM, lambda *_: _request(stop))

    def give_up(error: StageStalled) -> None:
        """Nothing of this process can be relied on, so it ends as if it had been killed."""
        try:
            claims.finish(given.attempt, _failed(error, error.retryable, error.exit_code))
            shutil.rmtree(work_path(job), ignore_errors=True)
        except Exception:  # who follows the job sees its end all the same
            traceback.print_exc()
        finally:
            os._exit(EXIT_FAILED)

    with (
        _swept(),
        _heartbeat(claims, given),
        watchdog(pulse, given.resources.stall_seconds, job, give_up),
    ):
        end = _attempt(store, given, claims, stop, pulse)
    claims.finish(given.attempt, end)
    return {"done": 0, "failed": EXIT_FAILED, "stopped": EXIT_STOPPED}[end.outcome]


def _request(stop: StopFlag) -> None:
    stop.requested = True


def _attempt(store: Store, given: JobInput, claims: Claims, stop: StopFlag, pulse: Pulse) -> End:
    kills = kernel_kills()
    try:
        record = _run(store, given, claims, stop, pulse)
        print(f"stage {given.stage} is done: {record.url}", flush=True)
        return End(outcome="done", exit_code=0)
    except Stopped:
        return End(outcome="stopped", message="asked to stop; the last checkpoint is kept")
    except OutOfMemory as error:
        return _out_of_memory(given, error, error.of)
    except TributaryError as error:
        if error.retryable and kernel_kills() > kills:
            return _out_of_memory(given, error, None)
        return _failed(error, error.retryable, error.exit_code)
    except Exception as error:
        if is_memory_error(error):
            return _out_of_memory(given, error, "job")
        return _failed(error, retryable=False, exit_code=1)
    except SystemExit as error:  # of a user's part; without an end the stage would be tried again
        return _failed(error, retryable=False, exit_code=1)


def _failed(error: BaseException, retryable: bool, exit_code: int) -> End:
    # What a person wrote or what was learned says it all; Prefect's page shows each line of a log.
    is_plain = isinstance(error, InputError | TrainingStopped) and error.__cause__ is None
    traceback.print_exception(type(error), error, None if is_plain else error.__traceback__)
    sys.stderr.flush()
    return End(
        outcome="failed",
        error=type(error).__name__,
        message=f"{error}{_raised_at(error)}"[:4000],
        retryable=retryable,
        exit_code=exit_code,
    )


def _raised_at(error: BaseException) -> str:
    """Where an error that is none of ours came from: its text alone may be `'answer'`."""
    if isinstance(error, TributaryError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    place = place_of([(f.filename, f.lineno or 0, f.name) for f in reversed(frames)])
    return f" (at {place})" if place else ""


def _out_of_memory(given: JobInput, error: Exception, whose: Whose | None) -> End:
    """Tried again unchanged it would end the same way."""
    traceback.print_exception(error)
    sys.stderr.flush()
    told = str(error) if isinstance(error, OutOfMemory) else f"{type(error).__name__}: {error}"
    killed = "the kernel killed a process for lack of memory; then " if whose is None else ""
    advice = memory_advice(
        given.stage, given.spec.get("settings", {}), given.resources, given.pool, whose
    )
    message = f"{killed}{told[:2000]}\n{advice}"
    return End(outcome="failed", error=OutOfMemory.__name__, message=message)


def _run(
    store: Store, given: JobInput, claims: Claims, stop: StopFlag, pulse: Pulse
) -> ArtifactRecord:
    started = time.monotonic()
    user = install_hooks(given.hooks)
    spec = spec_of(given.spec_name).model_validate(given.spec)
    with pulse.waiting():  # reading our own files, however slow the disk is, is no standstill
        identity = _verified(given, spec, user)
    artifacts = ArtifactStore(store)
    with _folders(given.job) as (out, scratch), open_reporter(given, pulse) as reporter:
        watch_reads(user, reporter.warn)
        checkpoints = StageCheckpoints(
            store,
            given.kind,
            given.digest,
            given.attempt,
            scratch,
            given.resources.checkpoints,
            partial(claims.check_newest, given.attempt),
        )
        context = StageContext(
            name=given.stage,
            holder=given.job,
            inputs=_local_inputs(artifacts, given),
            input_records={role: r.model_dump() for role, r in given.inputs.items()},
            out=out,
            scratch=scratch,
            checkpoints=WatchedCheckpoints(checkpoints, pulse),
            resources=given.resources,
            pool=given.pool,
            reporter=reporter,
            stop=stop,
            pulse=pulse,
            hooks=given.hooks,
            results=None if given.again else StoredResults(store, identity.code),
        )
        body = saying_outages(body_of(given.spec_name)(spec, context), reporter)
        metrics = reporter.numbers(_metrics(given, asyncio.run(_until_stopped(body, stop))))
        seconds = time.monotonic() - started
        return _commit(artifacts, given, identity, out, metrics, seconds, reporter)


def _metrics(given: JobInput, made: object) -> Mapping[str, object]:
    """Return what the body returned. Raises InputError for what is no dict."""
    if isinstance(made, Mapping):
        return cast("Mapping[str, object]", made)
    what = "nothing" if made is None else f"a {type(made).__name__}"
    raise InputError(
        f"the body of stage {given.stage} (kind {given.kind}) returned {what}: it must return a"
        ' dict of numbers by name, such as {"loss": 0.5}; {} where there are none'
    )


def _verified(given: JobInput, spec: StageSpec, user: InstalledFiles) -> StageIdentity:
    """Return what this process runs. Raises InputError unless it is what the digest was made of."""
    inputs = {role: record.digest for role, record in given.inputs.items()}
    identity = replace(stage_identity(spec, inputs, user), again=given.again)
    if identity.digest != given.digest:
        raise InputError(
            f"stage {given.stage}: its code, its hooks or its base folder changed between the plan"
            " and this job, or this host has another version of them: nothing was run. Start a new"
            " run to use the change"
        )
    return identity


async def _until_stopped(body: Coroutine[Any, Any, object], stop: StopFlag) -> object:
    """Return what the body returns. Raises Stopped when it is asked to stop and is far from its
    next step: it is waiting for engines, or its steps are long."""
    task = asyncio.ensure_future(body)
    left = STOP_GRACE_SECONDS
    while not task.done() and left > 0:
        await asyncio.wait({task}, timeout=STOP_POLL_SECONDS)
        left -= STOP_POLL_SECONDS if stop.requested else 0.0
    if not task.done():
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError as error:
        if not stop.requested:
            raise RuntimeError("the stage waited for a task that was cancelled") from error
        raise Stopped("stopped between two steps; the last checkpoint continues it") from None


def _local_inputs(artifacts: ArtifactStore, given: JobInput) -> dict[str, Path]:
    """Verified local folders by role, fetched side by side."""

    def fetched(record: ArtifactRecord) -> Path:
        folder = artifacts.local(record)
        if not artifacts.store.is_local:  # other hosts that need it fetch it as well
            root = artifacts.store.root
            note_origin(folder, Origin(root=root, kind=record.kind, digest=record.digest))
        return folder

    with ThreadPoolExecutor(max(1, len(given.inputs))) as pool:
        folders = pool.map(fetched, given.inputs.values())
        return dict(zip(given.inputs, folders, strict=True))


def _commit(
    artifacts: ArtifactStore,
    given: JobInput,
    identity: StageIdentity,
    out: Path,
    metrics: dict[str, float],
    seconds: float,
    reporter: JobReporter,
) -> ArtifactRecord:
    """Upload and create the manifest; when another attempt was first, theirs is the artifact."""
    try:
        record = artifacts.commit(
            given.kind,
            given.digest,
            given.attempt,
            out,
            identity=identity.content,
            inputs=identity.inputs,
            code=_with_commit(identity.code).model_dump(),
            again=identity.again,
            run=given.run,
            stage=given.stage,
            metrics=metrics,
            warnings=reporter.warnings,
            seeds={"seed": int(given.spec.get("seed", 0))},
            mlflow_run_id=given.mlflow_run,
            seconds=seconds,
        )
    except FencedOut:
        artifacts.tidy(given.kind, given.digest)  # what it saved after the other had committed
        winner = artifacts.find(given.kind, given.digest)
        if winner is None:
            raise
        return winner
    reporter.finish(record)
    return record


@contextlib.contextmanager
def _folders(job: str) -> Generator[tuple[Path, Path]]:
    """Empty `out` and `scratch` of this attempt, removed when it ends."""
    with work_folder(job) as folder:
        out, scratch = folder / "out", folder / "scratch"
        for path in (out, scratch):
            path.mkdir()
        yield out, scratch


@contextlib.contextmanager
def _swept() -> Generator[None]:
    """What killed processes left on this machine goes before the stage and after it."""
    remove_leftovers(leftovers_of_dead())
    try:
        yield
    finally:
        remove_leftovers(leftovers_of_dead())


@contextlib.contextmanager
def _heartbeat(claims: Claims, given: JobInput) -> Generator[None]:
    over = threading.Event()

    def beat() -> None:
        number = 0
        while not over.wait(HEARTBEAT_SECONDS if number else 0):
            number += 1
            try:
                claims.beat(given.attempt, number)
            except TributaryError as error:  # the body must not die of a slow store
                emit(given.job, "warn", message=f"heartbeat: {error}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=HEARTBEAT_SECONDS)


def _with_commit(identity: CodeIdentity) -> CodeIdentity:
    """The identity with the commit that git names, which takes a moment to find."""
    commit, dirty = _git_state(SOURCE_ROOT, list(identity.files))
    return identity.model_copy(update={"commit": commit, "dirty": dirty})


def _git_state(root: Path, files: Sequence[str]) -> tuple[str, bool]:
    """Commit of the checkout and whether one of the files differs from it."""
    if not (root / ".git").exists():
        return "", False
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        return commit, bool(_git(root, "status", "--porcelain", "--", *files).strip())
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(root: Path, *arguments: str) -> str:
    # Without the lock option `status` may rewrite the index under another git command's feet.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    done = ask_program(command, 10)
    done.check_returncode()
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
