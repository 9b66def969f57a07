"""A stage as a Prefect task: what a person sees of it in the Prefect page.

All that makes a stage durable is in `tasks.durable.attempts`; here its progress becomes a progress
artifact, its job and its MLflow run become links, and its result becomes a markdown table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast
from uuid import UUID

import httpx
from prefect import task
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.logging import get_run_logger
from prefect.states import Completed

from infra.store.artifacts import ArtifactRecord
from tasks.durable.attempts import StageLetGo
from tasks.durable.protocol import JobWatcher

PROGRESS_SECONDS = 2.0
"""how often the progress artifact is rewritten"""


class Stage(Protocol):
    """What the task needs of a planned stage."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


RunStage = Callable[[Any, Mapping[str, ArtifactRecord], JobWatcher], tuple[ArtifactRecord, bool]]
Url = Callable[[str], str]
"""the page of a job by its id, or of a stage's MLflow run by its name; empty for none"""


@task(task_run_name="{stage.name}", cache_policy=NO_CACHE, persist_result=False)
def durable_stage(
    stage: Stage,
    inputs: dict[str, ArtifactRecord],
    run_stage: RunStage,
    job_url: Url,
    mlflow_url: Url,
) -> State[ArtifactRecord]:
    """Look the stage up or run it. The store, not Prefect, remembers what is done."""
    watch = _PrefectWatch(stage, job_url, mlflow_url)
    try:
        record, cached = run_stage(stage, inputs, watch)
    except StageLetGo as error:
        raise Pause(str(error)) from error
    with watch.tolerated():
        watch.link_mlflow()  # a cached stage has no job, but an entry of its own
        create_markdown_artifact(
            _result(stage, record, cached),
            key=f"stage-{stage.name}",
            description=f"Result of stage {stage.name}",
        )
    name = "Cached" if cached else "Completed"
    return Completed(name=name, message=record.url, data=record)


class _PrefectWatch:
    """Shows a job in its task run."""

    def __init__(self, stage: Stage, job_url: Url, mlflow_url: Url) -> None:
        self._stage, self._job_url, self._mlflow_url = stage, job_url, mlflow_url
        self._is_linked = False
        self._log: logging.Logger | logging.LoggerAdapter[logging.Logger] = get_run_logger()
        self._artifact: UUID | None = None
        self._updated = 0.0

    def line(self, text: str) -> None:
        self._log.info(text)

    def warn(self, message: str) -> None:
        self._log.warning(message)

    def started(self, job: str, attempt: int, mine: bool) -> None:
        verb = "started" if mine else "joined"
        self._log.info("%s job %s (attempt %d)", verb, job, attempt)
        with self.tolerated():
            self._link_job(job)
            self.link_mlflow()

    def _link_job(self, job: str) -> None:
        url = self._job_url(job)
        if url:
            create_link_artifact(
                url,
                link_text=job,
                key=f"job-{self._stage.name}",
                description=f"Ray job of stage {self._stage.name}",
            )

    def link_mlflow(self) -> None:
        """Once: the stage's curves."""
        url = "" if self._is_linked else self._mlflow_url(self._stage.name)
        if url:
            create_link_artifact(
                url,
                link_text="MLflow run",
                key=f"mlflow-{self._stage.name}",
                description=f"MLflow run of stage {self._stage.name}",
            )
            self._is_linked = True

    def progress(self, done: int, total: int, message: str) -> None:
        now = time.monotonic()
        if done < total and now - self._updated < PROGRESS_SECONDS:
            return
        self._updated = now
        percent = 100.0 * done / max(total, 1)
        description = f"{self._stage.name}: {done} of {total} {message}".strip()
        with self.tolerated():
            if self._artifact is None:
                made = create_progress_artifact(
                    percent, key=f"progress-{self._stage.name}", description=description
                )
                self._artifact = cast("UUID", made)  # a coroutine only where the caller is async
            else:
                update_progress_artifact(self._artifact, percent, description=description)

    @contextmanager
    def tolerated(self) -> Generator[None]:
        """What is shown of a stage is not worth failing for: the server may come back."""
        try:
            yield
        except httpx.HTTPError as error:
            self._log.warning("Prefect's server did not take what is shown: %r", error)


def _result(stage: Stage, record: ArtifactRecord, cached: bool) -> str:
    rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in sorted(record.metrics.items()))
    origin = "found in the store" if cached else f"made in {record.seconds:.1f} s"
    return (
        f"### {stage.name} ({stage.kind}): {origin}\n\n`{record.url}`\n\n"
        f"digest `{record.digest}`\n\n| metric | value |\n|---|---|\n{rows}\n"
    )
