"""A stage as a Prefect task: what a person sees of it in the Prefect page.

All that makes a stage durable is in `tasks.durable.attempts`; here its progress, the pages of its
job and of its MLflow run, and its result become one markdown artifact, and its last state says the
result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast
from uuid import UUID

import httpx
from prefect import get_client, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from infra.errors import TributaryError
from infra.shown_text import markdown_block, markdown_code, markdown_link, markdown_text
from infra.store.artifacts import ArtifactRecord
from tasks.durable.attempts import StageLetGo, StageStopped
from tasks.durable.launch import title_of
from tasks.durable.protocol import JobWatcher, outcome_of

PROGRESS_SECONDS, MOST_PROGRESS_SECONDS, PROGRESS_SHARE = 2.0, 60.0, 0.02
"""between two versions of a running stage's artifact: at first, at most, and of what it has run.
Each is an event of 11 kB in Prefect's database, so a stage of days changes its bar once a minute"""
LONGEST_LINE = 240
"""characters of a log line on the page; the job's own log has all of it"""
_BAR = 20
RunStage = Callable[[Any, Mapping[str, ArtifactRecord], JobWatcher], tuple[ArtifactRecord, bool]]
Url = Callable[[str], str]
"""the page of a job by its id, or of a stage's MLflow run by its name; empty for none"""


class Stage(Protocol):
    """What the task needs of a planned stage."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def steps(self) -> int: ...


@task(task_run_name="{stage.name}", cache_policy=NO_CACHE, persist_result=False)
def durable_stage(
    stage: Stage,
    inputs: dict[str, ArtifactRecord],
    run_stage: RunStage,
    job_url: Url,
    mlflow_url: Url,
) -> State[Any]:
    """Look the stage up or run it. The store, not Prefect, remembers what is done."""
    watch = _PrefectWatch(stage, job_url, mlflow_url)
    try:
        record, cached = run_stage(stage, inputs, watch)
    except StageLetGo as error:
        raise Pause(str(error)) from error
    except (TributaryError, StageStopped) as error:  # says what to do; a traceback does not
        watch.failed(str(error))
        return Failed(message=str(error), data=error)
    outcome = outcome_of(record.metrics, stage.steps)
    watch.done(record, cached, outcome)
    name = "Cached" if cached else "Completed"
    if record.warnings:
        name += "WithWarnings"
    warned = "; ".join(f"WARNING: {warning}" for warning in record.warnings)
    said = "; ".join(filter(None, [warned, outcome])) or record.url
    return Completed(name=name, message=said, data=record)


class LiveArtifact:
    """A markdown artifact of the current flow or task run, written anew as things go on."""

    def __init__(self, key: str, description: str) -> None:
        self._key, self._description = key, description
        self._id: UUID | None = None

    def write(self, markdown: str) -> None:
        if self._id is None:
            made = create_markdown_artifact(markdown, self._key, self._description)
            self._id = cast("UUID", made)  # a coroutine only where the caller is async
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, ArtifactUpdate(data=markdown))


def pause_after(seconds: float) -> float:
    """Seconds to the next version of what is shown of a stage that has run for so long."""
    return min(max(PROGRESS_SECONDS, PROGRESS_SHARE * seconds), MOST_PROGRESS_SECONDS)


class _PrefectWatch:
    """Shows a stage in its task run."""

    def __init__(self, stage: Stage, job_url: Url, mlflow_url: Url) -> None:
        self._stage, self._job_url, self._mlflow_url = stage, job_url, mlflow_url
        self._log: logging.Logger | logging.LoggerAdapter[logging.Logger] = get_run_logger()
        description = f"Stage {stage.name}: its progress, result and pages"
        self._artifact = LiveArtifact(f"stage-{stage.name}", description)
        self._began, self._updated = time.monotonic(), 0.0
        self._job = ""

    def line(self, text: str) -> None:
        more = f" ... ({len(text)} characters; see the job's log)"
        self._log.info(text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + more)

    def warn(self, message: str) -> None:
        self._log.warning(message)

    def started(self, job: str, attempt: int, mine: bool) -> None:
        self._job = job
        self._log.info("%s job %s (attempt %d)", "started" if mine else "joined", job, attempt)
        self._show("running", "")

    def progress(self, done: int, total: int, message: str) -> None:
        now = time.monotonic()
        if done < total and now - self._updated < pause_after(now - self._began):
            return
        self._updated = now
        filled = _BAR * done // max(total, 1)
        bar = "▓" * filled + "░" * (_BAR - filled)
        self._show("running", f"`{bar}` {done} of {total} {markdown_text(message)}")

    def failed(self, message: str) -> None:
        self._show("failed", markdown_block(message))

    def done(self, record: ArtifactRecord, cached: bool, outcome: str) -> None:
        origin = "found in the store" if cached else f"made in {record.seconds:.1f} s"
        metrics = record.metrics.items()
        rows = "\n".join(f"| {markdown_text(name)} | {value:.4g} |" for name, value in metrics)
        where = f"artifact {markdown_code(record.url)}\n\ndigest `{record.digest}`"
        warned = "".join(f"**Warning: {markdown_text(str(w))}**\n\n" for w in record.warnings)
        table = f"| metric | value |\n|---|---|\n{rows}"
        self._show(outcome or "done", f"{warned}{origin}\n\n{where}\n\n{table}")

    def _show(self, state: str, text: str) -> None:
        """The stage's one artifact; written anew as the stage goes on."""
        title = f"### {self._stage.name} ({self._stage.kind}): {markdown_text(state)}"
        content = f"{title}\n\n{text}\n\n{self._pages()}"
        with self._tolerated():
            self._artifact.write(content)

    def _pages(self) -> str:
        """The cached stage has no job here, but an entry of its own in MLflow."""
        links = {"MLflow run": self._mlflow_url(self._stage.name)}
        if self._job:
            links["Ray job"] = self._job_url(self._job)
        shown = [markdown_link(title, url) for title, url in links.items() if url]
        if self._job:
            run, _, stage = title_of(self._job).partition("/")
            shown.append(f"log: `tributary logs {run} {stage}`")
        return " · ".join(shown)

    @contextmanager
    def _tolerated(self) -> Generator[None]:
        """What is shown of a stage is not worth failing for: the server may come back."""
        try:
            yield
        except httpx.HTTPError as error:
            self._log.warning("Prefect's server did not take what is shown: %r", error)
