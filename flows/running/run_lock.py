"""Whether a run is running: the process that works on it has its lock, which ends with the process.

Prefect alone cannot answer this: after a power cut its database says that a flow runs. Only
processes of one machine, the machine of its home, work on a run.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from infra.config import Config
from infra.errors import InputError
from infra.home import home
from infra.processes.children import birth_of, same_process
from infra.processes.work_folder import takes_lock, takes_lock_within

GLANCE_SECONDS = 1.0
"""a lock that is only looked at is free again by then"""
GIVE_WAY_SECONDS = 30.0
"""what a flow may take to notice that its flow run is in other hands, and to leave"""


class Holder(Config):
    """Who works on a run, as its lock file says."""

    pid: int
    birth: str
    flow_run: str = ""
    """the Prefect flow run that it is; empty in process"""


@contextmanager
def working_on(
    run: str, flow_run: str = "", given_up: Callable[[str], bool] = lambda flow_run: False
) -> Generator[None]:
    """Raises InputError while another process works on the run.

    A flow waits for one that is about to leave. One whose flow run is this very one, or of which
    `given_up` says that Prefect has given it up, and which does not leave, hangs: it is killed.
    Its jobs go on.
    """
    with _lock_file(run) as file:
        if not takes_lock_within(file, GIVE_WAY_SECONDS if flow_run else GLANCE_SECONDS):
            _end_hanging(run, flow_run, given_up)
            if not takes_lock_within(file, GLANCE_SECONDS):
                raise InputError(
                    f"run {run} is already running, in process {_pid(run)}; "
                    f"follow it with `tributary resume {run}`"
                )
        _sign(file, flow_run)
        yield


@contextmanager
def one_at_a_time(what: str) -> Generator[None]:
    """A moment's work that no two processes of this home do side by side, by a name of its own.
    Raises InputError when another one is at it for too long."""
    with _lock_file(what) as file:
        if not takes_lock_within(file, GIVE_WAY_SECONDS):
            raise InputError(
                f"another process holds {_path(what)} for more than {GIVE_WAY_SECONDS:.0f} s; end"
                " it, and try again"
            )
        yield


def is_running(run: str) -> bool:
    """Return whether a process of this machine works on the run now."""
    with _lock_file(run) as file:
        return not takes_lock(file, fcntl.LOCK_SH)


def interrupt(run: str) -> None:
    """Ask the process that works on the run to end it after a checkpoint."""
    holder = _holder(run) if is_running(run) else None
    process = same_process(holder.pid, holder.birth) if holder is not None else None
    if process is not None:
        process.terminate()


def _end_hanging(run: str, flow_run: str, given_up: Callable[[str], bool]) -> None:
    holder = _holder(run)
    if holder is None or not (flow_run and holder.flow_run):
        return
    if holder.flow_run == flow_run or given_up(holder.flow_run):
        process = same_process(holder.pid, holder.birth)
        if process is not None:
            process.kill()


def _pid(run: str) -> str:
    holder = _holder(run)
    return str(holder.pid) if holder is not None else "(unknown)"


def _holder(run: str) -> Holder | None:
    try:
        return Holder.model_validate_json(_path(run).read_text())
    except ValidationError:  # it has only just taken the lock
        return None


def _sign(file: IO[str], flow_run: str) -> None:
    me = Holder(pid=os.getpid(), birth=birth_of(os.getpid()), flow_run=flow_run)
    file.truncate(0)
    file.write(me.model_dump_json())
    file.flush()


def _lock_file(run: str) -> IO[str]:
    path = _path(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


def _path(run: str) -> Path:
    return home() / "runs" / f"{run}.lock"
