"""One process per flow run: an older process ends when a newer one starts.

Prefect starts a flow run in a new process when someone resumes or retries it. The older process may
still be alive, because it follows a stage that takes hours. It stops following its jobs, which
continue, and ends without a report to the server; the new process follows the jobs. A flow that is
alive while Prefect considers it dead, as after a time without its server, tells Prefect so.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.events import Event, Resource
from prefect.exceptions import Pause
from prefect.states import Running

from infra.stack.watch import LEFT, RESOURCE

POLL_SECONDS = 2.0


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
    """Whether a flow run's states since a process began to run it say that this one is not to go
    on. A pause that does not reschedule the run expects its process to wait."""
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
