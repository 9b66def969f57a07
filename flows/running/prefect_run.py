"""Runs a plan through Prefect: each stage is a task run, side by side where its inputs allow.

Prefect starts a flow run in a new process when someone resumes or retries it. The older process may
still be alive, because it follows a stage that takes hours. It stops following its jobs, which
continue, and ends without a report to the server; the new process follows the jobs. A flow that is
alive while Prefect considers it dead, as after a time without its server, tells Prefect so.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events import Event, Resource
from prefect.exceptions import Pause
from prefect.flows import Flow
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import deployment
from prefect.runtime import flow_run as current
from prefect.states import Completed, Failed, Running
from prefect.task_runners import ThreadPoolTaskRunner

from flows.catalog import plan_of
from flows.page.form import Asked, called
from flows.plan import PlannedStage
from flows.reports.outcome import warning_lines
from flows.reports.page import markdown
from flows.reports.report import Report, build_report, notes
from flows.running.chosen_stages import require_stored
from flows.running.finish import (
    WARNED,
    conclude,
    message_of,
    publish,
    shown_name,
    shown_tags,
)
from flows.running.new_run import NotDue, new_run, require_same
from flows.running.open import open_run, stop_run
from flows.running.prefect_api import RUN_LABEL, RefusedRun, forget_refused, put_refused
from flows.running.records import RunRecord, check_name, find_run
from flows.running.run import RecipeRun, execute, first_error, recorded
from flows.running.run_lock import working_on
from infra.errors import TributaryError
from infra.home import home, write_whole
from infra.shown_text import is_web_address, markdown_link
from infra.stack.prefect_server import LEFT, RESOURCE
from infra.store.artifacts import ArtifactRecord
from tasks.durable.attempts import StageStopped
from tasks.durable.prefect_task import LiveArtifact, durable_stage

Future = PrefectFuture[Any]
PREFECT_RUN = "Prefect run"
POLL_SECONDS = 2.0


def task_runner() -> Any:
    """Threads only wait: `resources.concurrent_stages` says how many stages run at once."""
    return ThreadPoolTaskRunner(max_workers=64)


def run_flow(
    name: str, form: Mapping[str, Any], arguments: Callable[[], dict[str, Any]]
) -> State[Any]:
    """Run a flow's plan as tasks of the current flow run; its last state, which says the result and
    holds the report as JSON. `form` is what `Asked` reads; `arguments` reads the flow's own fields.
    Both may refuse what they say."""
    try:
        report = _report(name, Asked.of(form), arguments())
    except (TributaryError, StageStopped) as error:  # says what to do; a traceback does not
        get_run_logger().error(str(error))  # the page shows only the first line of a state
        logging.getLogger("prefect.flow_runs").addFilter(_says_more)
        if not _remembered(str(current.id)):
            _rename(str(current.id), f"{called(form)}, refused")
            put_refused(
                str(current.id), RefusedRun(asked=called(form), why=str(error), at=time.time())
            )
        return Failed(message=str(error))
    except NotDue as why:
        # Lists leave out states whose name Prefect does not know, so the run's name says it.
        _rename(str(current.id), f"{called(form)}, {why.state}")
        return Completed(message=str(why))
    return Completed(message=message_of(report), data=report.model_dump())


def _report(name: str, asked: Asked, arguments: dict[str, Any]) -> Report:
    flow_run = str(current.id)
    record = _record(flow_run, name, asked, arguments)
    _remember(flow_run, record.run)
    _show_name(flow_run, record, is_warned=False)
    plan = plan_of(name, record.recipe(), record.head().arguments)
    if deployment.id:
        _write_to(home() / "logs" / "flows" / f"{record.run}.log")
    links = {PREFECT_RUN: current.ui_url or ""}
    # The report is made last: once the run's end is on record.
    with (
        working_on(record.run, flow_run, _is_given_up),
        ExitStack() as after,
        recorded(record, links, flow_run),
    ):
        opened = open_run(record)
        shown = LiveArtifact("run", f"Run {record.run}: its pages and its report")
        after.callback(_publish, opened, plan, shown)
        record.add_links(opened.tracked.links())
        shown.write(_pages(opened))
        conclude(opened, plan, _run_stages(opened, plan))
    report = build_report(record, plan)
    if warning_lines(report):
        _show_name(flow_run, record, is_warned=True)
    return report


def _record(flow_run: str, name: str, asked: Asked, arguments: dict[str, Any]) -> RunRecord:
    """The run that this flow run continues, or a new one."""
    known = _remembered(flow_run) or _labelled(flow_run)
    if known:
        record = find_run(known)
        require_same(record.head(), name, asked, arguments)
        return record
    check_name(asked.name)
    recipe = asked.resolved()
    plan = plan_of(name, recipe, arguments)  # refuses what is wrong before anything is on record
    require_stored(recipe, plan)
    return new_run(recipe, name, arguments, name=asked.name, in_process=False, asked=asked.by_name)


def _show_name(flow_run: str, record: RunRecord, is_warned: bool) -> None:
    """Runs are told apart by recipe, seed and given name, whatever Prefect's page made up. A tag
    says that there are warnings: lists leave out a state that has another name."""
    head = record.head()
    with get_client(sync_client=True) as client:
        known = client.read_flow_run(UUID(flow_run))
        client.update_flow_run(
            UUID(flow_run),
            name=shown_name(head),
            tags=sorted({*known.tags} - {WARNED} | {*shown_tags(head, is_warned)}),
        )


ENGINES_LAST_WORD = "Engine execution exited with unexpected exception"
"""what Prefect logs below a failure, with a traceback of its own functions"""


def _says_more(line: logging.LogRecord) -> bool:
    return line.getMessage() != ENGINES_LAST_WORD


def _rename(flow_run: str, name: str) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run), name=name)


def _labelled(flow_run: str) -> str:
    """The run that `tributary` started this flow run for; Prefect's copy of it has no label."""
    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(UUID(flow_run)).labels.get(RUN_LABEL, ""))


def _write_to(log: Path) -> None:
    """Let this process write to a file: the worker's pipe breaks when the worker dies, and who then
    writes a line of log dies too."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def _publish(run: RecipeRun, plan: list[PlannedStage], shown: LiveArtifact) -> None:
    report = publish(run, plan)
    text = markdown(report, notes(report, run.recipe))
    shown.write(f"{_pages(run)}\n\n{text}")


def _run_stages(run: RecipeRun, plan: list[PlannedStage]) -> dict[str, ArtifactRecord]:
    def start(stage: PlannedStage, inputs: dict[str, Future]) -> Future:
        made: Any = inputs  # Prefect puts the futures' results in their place
        urls = run.place.launcher.url, run.tracked.stage_url
        # Its name is what the page calls a stage that has not begun.
        tagged = durable_stage.with_options(name=stage.name, tags={stage.kind, stage.expert} - {""})
        return tagged.submit(stage, made, run.stage, *urls)

    futures = execute(plan, start)
    artifacts: dict[str, ArtifactRecord] = {}
    errors: list[Exception] = []
    with (
        giving_way(UUID(str(current.id)), run.place.let_go),
        _stopping_when_cancelled(run),
    ):
        for name, future in futures.items():
            try:
                artifacts[name] = future.result()
            except Exception as error:
                errors.append(error)
        if errors:
            raise first_error(errors)
    return artifacts


@contextmanager
def _stopping_when_cancelled(run: RecipeRun) -> Generator[None]:
    """Prefect ends a cancelled flow by a signal, and by SIGKILL half a minute later: until its
    stages' jobs are over, the threads that follow them would keep it waiting.

    A flow that is ended for another reason leaves its jobs alone: it comes back to them.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        if _is_cancelled():
            run.place.cancelled.set()
            stop_run(run.record, run.place.launcher)
        raise


def _is_cancelled() -> bool:
    state = _state(str(current.id))
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def _is_given_up(flow_run: str) -> bool:
    state = _state(flow_run)
    return state is not None and state.is_crashed()


def _state(flow_run: str) -> State[Any] | None:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(flow_run)).state


def _pages(run: RecipeRun) -> str:
    """The other pages that a browser can open from here; a command for the one that is a file."""
    links = {title: url for title, url in run.record.state().links.items() if title != PREFECT_RUN}
    shown = [markdown_link(title, url) for title, url in links.items() if is_web_address(url)]
    return " · ".join([*shown, f"report: `tributary report {run.record.run}`"])


def stop_stages(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Hook of a cancelled flow run: its own jobs stop after a checkpoint."""
    run = _remembered(str(flow_run.id))
    if run:
        stop_run(find_run(run))


def _remember(flow_run: str, run: str) -> None:
    """The hook of a cancelled run knows only its Prefect id, and so does a flow that was resumed or
    retried on Prefect's page."""
    write_whole(_marker(flow_run), run)
    forget_refused(flow_run)


def _remembered(flow_run: str) -> str:
    """The run that a flow run has worked on; empty when it is new."""
    marker = _marker(flow_run)
    return marker.read_text() if marker.is_file() else ""


def _marker(flow_run: str) -> Path:
    return home() / "runs" / "prefect" / flow_run


@contextmanager
def giving_way(flow_run: UUID, let_go: threading.Event) -> Generator[None]:
    """Set `let_go` once the flow run is suspended or is to run in another process. What is raised
    then becomes `Pause`, on which Prefect's engine ends and leaves the state as it is."""
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(flow_run, let_go, over), name="give-way", daemon=True
    )
    watcher.start()
    try:
        yield
    except (Exception, Pause) as error:
        if let_go.is_set():
            atexit.register(_say_left, flow_run)
            raise Pause("suspended, or started again: its jobs continue") from error
        raise
    finally:
        over.set()
        watcher.join(POLL_SECONDS)  # a server that is away answers much later


def is_in_other_hands(since: Sequence[State[Any]]) -> bool:
    """Return whether a flow run's states since a process began to run it say that this one is not
    to go on. A pause that does not reschedule the run expects its process to wait."""
    return any(
        state.type == StateType.SCHEDULED or state.state_details.pause_reschedule for state in since
    )


def _watch(flow_run: UUID, let_go: threading.Event, over: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        began = None
        while not over.is_set():
            # A server that is away is no sign of anything: nobody can have started the run anew.
            with contextlib.suppress(httpx.HTTPError):
                states = sorted(client.read_flow_run_states(flow_run), key=_timestamp)
                began = began or max(_timestamp(state) for state in states if state.is_running())
                if is_in_other_hands([state for state in states if _timestamp(state) > began]):
                    let_go.set()
                    return
                if states[-1].is_crashed():
                    alive = Running(message="Its process is alive; only its heartbeats were lost.")
                    client.set_flow_run_state(flow_run, alive, force=True)
            over.wait(POLL_SECONDS)


def _timestamp(state: State[Any]) -> datetime:
    return state.timestamp


def _say_left(flow_run: UUID) -> None:
    """After the last heartbeat, as the process ends: its silence is no death."""
    event = Event(event=LEFT, resource=Resource({RESOURCE: f"prefect.flow-run.{flow_run}"}))
    with contextlib.suppress(httpx.HTTPError), get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[event.model_dump(mode="json")])
