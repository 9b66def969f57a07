"""A plan run in the calling process: no Prefect server, jobs as children of this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from flows.catalog import plan_of
from flows.plan import PlannedStage
from flows.running.finish import conclude, publish
from flows.running.open import open_run, stop_run
from flows.running.records import RunRecord
from flows.running.run import RecipeRun, execute, first_error, recorded
from flows.running.run_lock import working_on
from infra.store.artifacts import ArtifactRecord

Made = Future[ArtifactRecord]


class InProcessRun:
    """A run in threads of this process; `stop` ends its jobs after a checkpoint.

    Raises InputError when another process works on the run.
    """

    def __init__(self, record: RunRecord, say: Callable[[str], None]) -> None:
        head = record.head()
        self._record, self._say = record, say
        self._run = open_run(record)
        self._plan = plan_of(head.flow, self._run.recipe, head.arguments)
        self._error: BaseException | None = None
        self._held = contextlib.ExitStack()
        self._held.enter_context(working_on(record.run))
        self._thread = threading.Thread(target=self._work, name="run", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._run.place.cancelled.set()
        stop_run(self._record, self._run.place.launcher)
        self._thread.join()

    def result(self) -> None:
        """Wait for the end; raises what ended the run, if it failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            with recorded(self._record, self._run.tracked.links()):
                conclude(self._run, self._plan, _run_stages(self._run, self._plan, self._say))
        except BaseException as error:
            self._error = error
        finally:
            publish(self._run, self._plan)
            self._held.close()


def _run_stages(
    run: RecipeRun, plan: list[PlannedStage], say: Callable[[str], None]
) -> dict[str, ArtifactRecord]:
    # A thread a stage: those that wait for inputs must not keep others from starting.
    with ThreadPoolExecutor(len(plan)) as pool:

        def start(stage: PlannedStage, inputs: dict[str, Made]) -> Made:
            def work() -> ArtifactRecord:
                given = {role: future.result() for role, future in inputs.items()}
                return run.stage(stage, given, _Console(stage.name, say))[0]

            return pool.submit(work)

        futures = execute(plan, start)
    errors = [error for f in futures.values() if (error := f.exception()) is not None]
    if errors:
        raise first_error(errors)
    return {name: future.result() for name, future in futures.items()}


class _Console:
    """A watch that shows warnings; everything else is in the run's record and the job's log."""

    def __init__(self, stage: str, say: Callable[[str], None]) -> None:
        self._stage, self._say = stage, say

    def line(self, text: str) -> None: ...

    def progress(self, done: int, total: int, message: str) -> None: ...

    def warn(self, message: str) -> None:
        self._say(f"{self._stage}: {message}")

    def started(self, job: str, attempt: int, mine: bool) -> None:
        if attempt > 1 or not mine:
            self._say(f"{self._stage}: {'attempt' if mine else 'joined attempt'} {attempt} ({job})")
