"""Runs the stages of a run: looked up or run, recorded and tracked. Knows no Prefect.

A result never changes: others may be made from it. So what is made again has a digest of its own,
which holds the run that made it; attempts, checkpoints and resume are that digest's. Of two equal
results the first one counts, so that what was made from it stays cached.

plan -> for each stage: digest -> run_stage -> stage record, MLflow run -> scores, registration
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from flows.checks.memory.fit import sized
from flows.plan import PlannedStage
from flows.reasons import changes, taken_by
from flows.recipe import Recipe
from flows.running.chosen_stages import not_stored
from flows.running.records import RunRecord, RunState, StageRecord
from flows.running.tracked_run import TrackedRun
from infra.errors import InputError, StageFailed, StorageError, TributaryError
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.manifest import StageWarning
from infra.timeline import TRACE_FILE
from infra.user_files import InstalledFiles
from tasks.durable.attempts import (
    RunPlace,
    StageLetGo,
    StageStopped,
    StageWork,
    is_under_way,
    run_stage,
)
from tasks.durable.protocol import JobWatcher
from tasks.durable.stage_identity import StageIdentity, stage_identity

_NAMED = 3
RECORD_SECONDS = 1.0
"""how often a running stage's record is rewritten"""
_NEWEST_WARNINGS = 3
"""those of a running stage that its record shows"""


def again_in(
    run: str, identity: StageIdentity, known: StageRecord | None, artifacts: ArtifactStore
) -> StageIdentity:
    """Return what the run makes; the identity itself where there is no result yet, or where this
    run makes it."""
    begun_here = known is not None and known.mine and known.digest == identity.digest
    if begun_here or artifacts.find(identity.kind, identity.digest) is None:
        return identity
    return replace(identity, again=run)


def settled(
    first: ArtifactRecord, second: ArtifactRecord, artifacts: ArtifactStore
) -> tuple[ArtifactRecord, str]:
    """The result that counts, and a sentence on how the two compare."""
    before, after = _checksums(first, artifacts), _checksums(second, artifacts)
    if before == after:
        return first, "ran again: every file is the same; what was made from it stays cached"
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return second, (
        f"ran again: another result than {first.name}, in {', '.join(names[:_NAMED])}{more}; what"
        " is made from it runs again in this run"
    )


def _checksums(record: ArtifactRecord, artifacts: ArtifactStore) -> Mapping[str, str]:
    """Each file's checksum, but the timeline's, which holds times and differs in every run."""
    manifest = artifacts.manifest(record.kind, record.digest)
    files = manifest.files if manifest else []
    return {file.path: file.sha256 for file in files if file.path != TRACE_FILE}


Future = TypeVar("Future")


def execute(
    plan: list[PlannedStage], start: Callable[[PlannedStage, dict[str, Future]], Future]
) -> dict[str, Future]:
    """Start every stage with its inputs' futures, in the plan's order; futures by stage name."""
    futures: dict[str, Future] = {}
    for stage in plan:
        inputs = {role: futures[source] for role, source in stage.inputs.items()}
        futures[stage.name] = start(stage, inputs)
    return futures


class RecipeRun:
    """What the stages of one run share."""

    def __init__(
        self,
        record: RunRecord,
        recipe: Recipe,
        place: RunPlace,
        user_files: InstalledFiles,
        tracked: TrackedRun,
    ) -> None:
        self.record, self.recipe, self.place, self.tracked = record, recipe, place, tracked
        self._user_files = user_files
        self._slots = threading.BoundedSemaphore(recipe.resources.concurrent_stages)

    def stage(
        self, planned: PlannedStage, inputs: Mapping[str, ArtifactRecord], watch: JobWatcher
    ) -> tuple[ArtifactRecord, bool]:
        """Look the stage up or run it. The experts' stages wait here for a free slot."""
        known = self.record.stage(planned.name)
        planned = sized(self.recipe, planned)
        work, first, accepted = self._work(planned, inputs, known, watch)
        progress = _Recorded(self.record, planned, work.digest, watch, known)
        try:
            made, cached = self._look_up_or_run(planned, work, progress, known)
            if first is not None:
                made, said = settled(first, made, self.place.artifacts)
                progress.say(said)
            if accepted:
                progress.say(accepted)
            return made, cached
        except StageStopped as error:
            progress.end("stopped", str(error))
            raise
        except StageLetGo:
            raise  # its job goes on, and so its record
        except Exception as error:
            progress.end("failed", str(error))
            raise

    def _look_up_or_run(
        self,
        planned: PlannedStage,
        work: StageWork,
        progress: _Recorded,
        known: StageRecord | None,
    ) -> tuple[ArtifactRecord, bool]:
        found = self.place.artifacts.find(planned.kind, work.digest)
        if found is not None:
            return self._found(planned, found, progress, known)
        if planned.is_stored:
            raise InputError(not_stored(planned.name))
        progress.wait()
        with self._slots:
            return self._run(planned, work, progress)

    def _work(
        self,
        planned: PlannedStage,
        inputs: Mapping[str, ArtifactRecord],
        known: StageRecord | None,
        watch: JobWatcher,
    ) -> tuple[StageWork, ArtifactRecord | None, str]:
        """Return what there is to do; the result that it repeats, if any; and why a result of other
        code counts, if it does."""
        digests = {role: record.digest for role, record in inputs.items()}
        identity = stage_identity(planned.spec, digests, self._user_files)
        accepted = ""
        if planned.accepts_code:
            older = taken_by(self.recipe.name, self.place.artifacts)(planned, identity)
            if changed := "; ".join(change.text for change in changes(older, identity)):
                accepted = f"taken as it is (--accept-code), though made by other code: {changed}"
            identity = older
        first, digest, again = None, identity.digest, ""
        if planned.again:
            made_again = again_in(self.record.run, identity, known, self.place.artifacts)
            if again := made_again.again:
                first = self.place.artifacts.find(planned.kind, digest)
                digest = made_again.digest
        # A new result is wanted, so what an earlier run made does not stand in for it.
        begun = known.digest if known is not None and (known.mine or not planned.again) else ""
        if begun and begun != digest:
            digest = self._of_begun(planned, begun, digest, watch)
        work = StageWork(planned.name, planned.spec, inputs, planned.resources, digest, again=again)
        return work, first, accepted

    def _of_begun(self, planned: PlannedStage, begun: str, present: str, watch: JobWatcher) -> str:
        """The digest of a stage that this run started with other code or another base folder.

        A finished or running stage keeps its digest. A result is stored under the digest of what
        made it, so other stages start again. Raises InputError for unfinished work of old code.
        """
        changed = (
            f"stage {planned.name}: its code, hooks or base folder changed since this run, or an"
            " earlier round that it continues, began"
        )
        done = self.place.artifacts.find(planned.kind, begun) is not None
        if done or is_under_way(self.place, planned.kind, begun):
            watch.warn(f"{changed}; it stays as it was started. Start a new run to use the change")
            return begun
        if self.place.artifacts.has_checkpoints(planned.kind, begun):
            raise InputError(
                f"{changed}, and its unfinished work was made by the old version; start a new run"
                " to use the change (`tributary run`; finished stages stay cached), or undo the"
                " change and resume again"
            )
        watch.warn(f"{changed}; it starts again")
        return present

    def _found(
        self,
        planned: PlannedStage,
        found: ArtifactRecord,
        progress: _Recorded,
        known: StageRecord | None,
    ) -> tuple[ArtifactRecord, bool]:
        """Return an artifact that is there: another run's, or our own from before we were
        resumed."""
        made_here = known is not None and known.mine and not known.cached
        if made_here:
            self.place.artifacts.tidy(planned.kind, found.digest)
            self.tracked.made(planned, found)
        else:
            self.tracked.cached(planned, found)
        progress.found(found, cached=not made_here)
        return found, True

    def _run(
        self, planned: PlannedStage, work: StageWork, progress: _Recorded
    ) -> tuple[ArtifactRecord, bool]:
        if self.place.cancelled.is_set():
            raise StageStopped(f"stage {planned.name} was not started")
        with self.tracked.stage(planned, work) as work:
            artifact, cached = run_stage(work, self.place, progress)
        if progress.mine:
            self.tracked.made(planned, artifact)
        else:  # another run made it: ours shows it as cached, with its origin
            self.tracked.cached(planned, artifact)
        progress.end("completed", artifact=artifact)
        return artifact, cached


@contextlib.contextmanager
def recorded(record: RunRecord, links: Mapping[str, str], flow_run: str = "") -> Generator[None]:
    """Keep the run's state on record: running, then how it ended and after how long."""
    before, started, since = record.state(), time.time(), time.monotonic()
    state = RunState(
        state="running",
        started=started,
        seconds=before.seconds,
        flow_run=flow_run,
        links={**before.links, **links},
    )
    record.put_state(state)

    def end(name: str, message: str = "") -> None:
        latest = record.state()
        seconds = before.seconds + time.monotonic() - since
        record.put_state(
            latest.model_copy(
                update={"state": name, "message": message, "seconds": round(seconds, 2)}
            )
        )

    try:
        yield
    except BaseException as error:  # also a signal, and Prefect's pause
        failed = isinstance(error, Exception) and not isinstance(error, StageStopped)
        end("failed" if failed else "stopped", str(error))
        raise
    end("completed")


def first_error(errors: Sequence[BaseException]) -> BaseException:
    """The cause, not its consequences: a stage's own failure before a stop, before the rest."""
    order = (StageFailed, TributaryError, StageStopped)
    ranked = sorted(
        errors, key=lambda e: next((i for i, t in enumerate(order) if isinstance(e, t)), len(order))
    )
    return ranked[0]


class _Recorded:
    """A watch that keeps the stage's record up to date, and passes everything on."""

    def __init__(
        self,
        record: RunRecord,
        planned: PlannedStage,
        digest: str,
        inner: JobWatcher,
        known: StageRecord | None,
    ) -> None:
        self._record, self._inner = record, inner
        self._began, self._since = time.time(), time.monotonic()
        self._written = 0.0
        self._is_behind = False
        self._before = known.seconds if known else 0.0
        self._stage = StageRecord(
            name=planned.name,
            kind=planned.kind,
            digest=digest,
            seconds=self._before,
            before=known.before if known else 0.0,
            started=known.started if known else self._began,
        )
        if known and known.state == "running" and known.mine and known.digest == digest:
            self._stage = self._stage.model_copy(
                update={"state": "running", "job": known.job, "mine": True}
            )

    @property
    def mine(self) -> bool:
        return self._stage.mine

    def line(self, text: str) -> None:
        self._inner.line(text)

    def progress(self, done: int, total: int, message: str) -> None:
        now = time.time()
        first = {} if self._stage.begun_at else {"begun": done, "begun_at": now}
        if first or done >= total or time.monotonic() - self._written >= RECORD_SECONDS:
            self._show(done=done, total=total, message=message, told=now, **first)
        self._inner.progress(done, total, message)

    def warn(self, message: str) -> None:
        """Show it while the stage runs; its artifact has what is to be kept."""
        self._inner.warn(message)
        warned = [*self._stage.warnings, StageWarning(what=message)][-_NEWEST_WARNINGS:]
        if time.monotonic() - self._written >= RECORD_SECONDS:
            self._show(warnings=warned)
        else:
            self._stage = self._stage.model_copy(update={"warnings": warned})

    def started(self, job: str, attempt: int, mine: bool) -> None:
        self._began, self._since = time.time(), time.monotonic()
        self._show(
            state="running", job=job, mine=mine, started=self._began, before=self._before,
            begun_at=0.0, warnings=[],
        )  # fmt: skip
        self._inner.started(job, attempt, mine)

    def wait(self) -> None:
        """For a slot, and for its job to start. A job that an earlier process of the run left may
        run meanwhile: its record stays, for whoever cancels the run."""
        if not self._stage.job:
            self._put(state="pending")

    def say(self, message: str) -> None:
        """Show and record a message of a stage that is done."""
        self._inner.warn(message)
        self._put(message=message)

    def found(self, artifact: ArtifactRecord, *, cached: bool) -> None:
        """What this run made before it was resumed keeps its time; a cached stage took none."""
        self._put(
            state="cached" if cached else "completed",
            mine=not cached,
            cached=cached,
            seconds=0.0 if cached else self._before or round(artifact.seconds, 2),
            **_of_artifact(artifact),
        )

    def end(self, state: str, message: str = "", artifact: ArtifactRecord | None = None) -> None:
        made = {"warnings": []} if artifact is None else _of_artifact(artifact)
        seconds = round(self._before + time.monotonic() - self._since, 2)
        self._put(state=state, message=message[:2000], seconds=seconds, **made)

    def _show(self, **changes: object) -> None:
        """Show a stage whose job goes on. A store that is away for a moment is no reason to leave
        it. The next record says what this one would have."""
        try:
            self._put(**changes)
        except StorageError as error:
            if not self._is_behind:
                self._inner.warn(f"the stage's record is behind: {error}")
            self._is_behind = True
        else:
            self._is_behind = False

    def _put(self, **changes: object) -> None:
        self._written = time.monotonic()
        self._stage = self._stage.model_copy(update=changes)
        self._record.put_stage(self._stage)


def _of_artifact(made: ArtifactRecord) -> dict[str, object]:
    return {"artifact": made.url, "metrics": made.metrics, "warnings": made.warnings}
