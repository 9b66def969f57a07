"""Starts, repairs, shows and ends the local stack.

    ray ------------------.
    mlflow ---------------+--> ready
    prefect server -> worker, deployments

Everything that can start side by side does. What is started is written down at once, so an
interrupted `up` leaves nothing unknown behind.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.access import prepare_key, take_key
from infra.errors import InfrastructureError, InputError
from infra.guard import strangers_at
from infra.home import close_to_others, home, own_folder, runtime_dir, stack_temporary_dir
from infra.processes.children import (
    ProcessRecord,
    family,
    find,
    is_alive,
    memory_bytes,
    start,
    terminate,
    wait_ready,
)
from infra.processes.leftovers import leftovers_of_dead, remove_leftovers
from infra.processes.network import is_free
from infra.stack.database import database, require_same
from infra.stack.flow_jobs import is_elsewhere
from infra.stack.prefect_server import furnish
from infra.stack.record import (
    Stack,
    load_record,
    new_stack,
    require_head,
    require_ours,
    require_same_head,
    require_same_host,
    save_record,
    stack_lock,
)
from infra.stack.schedules import deploy
from infra.stack.services import Service, services

START_SECONDS = 240.0
START_TRIES = 5
"""Ray gives up after 30 s of its own, which a machine under load may need"""
SILENT_SECONDS = 10.0
"""how long a living service may fail to answer before it is restarted"""
STOP_SECONDS = 8.0
"""from SIGTERM to SIGKILL"""
GCS_STOP_SECONDS = 0.5
"""the same for Ray's GCS, which keeps nothing and waits for parts that have ended"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One service as of now."""

    name: str
    is_alive: bool
    answers: bool
    url: str
    pid: int | None
    memory: int
    """bytes of it and all it started, as proportional set size"""
    log: Path


def up(say: Say = lambda text: None, timeout: float = START_SECONDS, *, join: str = "") -> Stack:
    """Start what does not run; what runs and answers is left alone. `say` hears of each step.

    `join` is the Ray head (HOST:PORT) of a stack on another host, for which this one is to work;
    then only a Ray node is started.

    Raises InfrastructureError with the log's end of what did not come up, InputError when another
    checkout's stack runs in this home, it keeps its records in another database or listens
    elsewhere, or its servers could have no key.
    """
    with stack_lock():
        stack = _usable_record(join)
        if join:
            take_key(join)
            require_head(stack)
        else:
            prepare_key(in_use=_living(stack) != set())
            records = database()
            if records is not None:
                records.prepare()
        close_to_others(home())
        _make_folders(anew=not stack.services)
        save_record(stack)
        _Starter(stack, say, timeout).run()
    return stack


def down(say: Say = lambda text: None) -> int:
    """End everything that belongs to this home's stack; returns the number of processes."""
    with stack_lock():
        stack = load_record()
        ended = 0
        if stack is not None:
            ended = _end(stack, "prefect-worker")  # its flows' last reports find a server
            ended += _end(stack, None)
            save_record(stack.model_copy(update={"services": {}}))
        shutil.rmtree(runtime_dir(), ignore_errors=True)
        remove_leftovers(leftovers_of_dead())
        say(f"ended {ended} processes")
    return ended


def load_stack() -> Stack | None:
    """The running stack of this home; None when nothing of it runs, as far as this host can see.

    Raises InputError where another user's program listens at one of its ports, and would be sent
    the key.
    """
    stack = load_record()
    if stack is None or not stack.services:
        return None
    if is_elsewhere():
        return stack
    if not any(is_alive(record) for record in stack.services.values()):
        return None
    if not stack.head:
        _require_our_ports(stack)
    return stack


def _require_our_ports(stack: Stack) -> None:
    strangers = strangers_at(stack.ports.values())
    for name, port in stack.ports.items():
        if port in strangers:
            raise InputError(
                f"a program of another user (number {strangers[port]}) listens at port {port},"
                f" which is {name}'s in this home's stack, and would be sent its key. `tributary"
                " down`, then `tributary up`, which takes other ports"
            )


def status() -> list[ServiceState]:
    """Return every service, whether or not it runs; none when there was never a stack."""
    stack = load_record()
    if stack is None:
        return []
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda service: _state(stack, service), services(stack)))


def _state(stack: Stack, service: Service) -> ServiceState:
    record = stack.services.get(service.name)
    alive = record is not None and is_alive(record)
    memory = 0
    if record is not None and alive:
        memory = memory_bytes(family([record], f"{stack.mark}/{service.name}"))
    return ServiceState(
        name=service.name, is_alive=alive, answers=alive and service.answers(), url=service.url,
        pid=record.pid if record is not None and alive else None, memory=memory,
        log=_log(service.name),
    )  # fmt: skip


def _usable_record(head: str) -> Stack:
    """The record to start from: the last one while its dead services' ports can be had again."""
    before = load_record()
    if before is None:
        return new_stack(None, head)
    living = _living(before)
    if living:
        require_same_head(before, head)
        require_ours(before)
        require_same_host(before)
    if not head:
        require_same(before.database)
    if living and all(is_free(port) for port in _ports_of_the_dead(before, living)):
        return before
    _end(before, None)
    return new_stack(before, head)


def _living(stack: Stack) -> set[str]:
    return {name for name, record in stack.services.items() if is_alive(record)}


def _ports_of_the_dead(stack: Stack, living: set[str]) -> list[int]:
    """Ports that must be free for a repair, once what is left of the dead services is gone."""
    dead = [s.name for s in services(stack) if s.name not in living]
    for name in dead:
        _clear(stack, name)
    prefixes = {"ray": "ray_", "mlflow": "mlflow", "prefect-server": "prefect"}
    starts = tuple(prefixes[name] for name in dead if name in prefixes)
    return [port for name, port in stack.ports.items() if starts and name.startswith(starts)]


def _make_folders(*, anew: bool) -> None:
    """Make the folders outside of the home; what a stack of which nothing lives left is removed
    before.

    Raises InputError where another user made them.
    """
    own_folder(runtime_dir())
    if anew:
        shutil.rmtree(stack_temporary_dir(), ignore_errors=True)
    own_folder(stack_temporary_dir())


def _clear(stack: Stack, service: str) -> None:
    """End the rest of a service before it starts again. A worker's flows continue without it."""
    if service != "prefect-worker":
        _end(stack, service)
        return
    record = stack.services.get(service)
    worker = None if record is None else find(record)
    if worker is not None:
        worker.kill()  # asked to end, it would end its flows


def _end(stack: Stack, service: str | None) -> int:
    """End one service, or all, with everything it started."""
    wanted = stack.services if service is None else {
        k: v for k, v in stack.services.items() if k == service
    }  # fmt: skip
    mark = stack.mark if service is None else f"{stack.mark}/{service}"
    processes = family(wanted.values(), mark)
    last = _gcs_and_parent(processes)
    terminate([process for process in processes if process not in last], STOP_SECONDS)
    terminate(last, GCS_STOP_SECONDS)
    late = family([], mark)  # started while the others were ending
    terminate(late, 1.0)
    return len(processes) + len(late)


def _gcs_and_parent(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Ray's GCS, and the program that waits until it has ended."""
    found: set[int] = set()
    for process in processes:
        with suppress(psutil.Error):  # it ended meanwhile
            if process.name() == "gcs_server":
                found |= {process.pid, process.ppid()}
    return [process for process in processes if process.pid in found]


def _log(service: str) -> Path:
    return home() / "logs" / f"{service}.log"


class _Starter:
    """One run of `up`: a thread a service, each waiting for those that it comes after."""

    def __init__(self, stack: Stack, say: Say, timeout: float) -> None:
        self._stack, self._say, self._timeout = stack, say, timeout
        self._saving = threading.Lock()
        self._services = services(stack)

    def run(self) -> None:
        with ThreadPoolExecutor(len(self._services) + 1) as pool:
            ready: dict[str, Future[None]] = {}
            for service in self._services:  # listed after those that they wait for
                ready[service.name] = pool.submit(self._bring_up, service, dict(ready))
            if not self._stack.head:
                ready["deployments"] = pool.submit(self._deploy, ready["prefect-server"])
            for future in ready.values():
                future.result()

    def _bring_up(self, service: Service, ready: Mapping[str, Future[None]]) -> None:
        for name in service.after:
            ready[name].result()
        record = self._stack.services.get(service.name)
        if record is not None and is_alive(record):
            if _answers_soon(service):
                return
            self._say(f"{service.name} does not answer: restarting it")
            _clear(self._stack, service.name)
        began = time.monotonic()
        for tries in range(1, START_TRIES + 1):
            try:
                self._start(service)
                break
            except InfrastructureError:
                _clear(self._stack, service.name)
                if tries == START_TRIES:
                    raise
                self._say(f"{service.name} did not start; trying again")
        self._say(f"{service.name} started after {time.monotonic() - began:.1f} s: {service.url}")

    def _start(self, service: Service) -> None:
        record = start(service.command, service.env, _log(service.name), home())
        self._note(service.name, record)
        wait_ready(service.name, record, service.answers, self._timeout)

    def _deploy(self, server: Future[None]) -> None:
        server.result()
        furnish(self._stack)
        deploy(self._stack)

    def _note(self, name: str, record: ProcessRecord) -> None:
        with self._saving:
            self._stack.services[name] = record
            save_record(self._stack)


def _answers_soon(service: Service) -> bool:
    deadline = time.monotonic() + SILENT_SECONDS
    while not service.answers():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
