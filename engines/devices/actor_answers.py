"""Waiting for calls to Ray actors: all at once, bounded, with our own errors instead of Ray's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import EngineError, OutOfMemory, TributaryError


@dataclass(frozen=True, slots=True)
class ProcessAddress:
    """Example: ProcessAddress("10.0.0.7", 4711, "/tmp/ray/.../worker-4711.err")"""

    host: str
    pid: int
    log: str
    """file with the process's stderr on that host; empty where it has none"""


def address_of_this_actor() -> ProcessAddress:
    """Host, pid and log file of the calling Ray actor."""
    import ray.util

    try:
        log = os.readlink("/proc/self/fd/2")  # Ray points stderr at the worker's own file
    except OSError:
        log = ""
    return ProcessAddress(ray.util.get_node_ip_address(), os.getpid(), log if "/" in log else "")


_GRACE_S = 1.0


async def answers(
    calls: Sequence[Any], timeout_s: float, what: str, places: Sequence[ProcessAddress]
) -> list[Any]:
    """The answers of `calls` (object refs), in order; `places[i]` is where call i runs.

    Raises the error of ours that a call raised, else EngineError saying which rank, where and
    with which log. When one rank fails the others often hang in a collective, so the first
    failure ends the wait, after a moment in which another rank may tell the real reason.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        done, pending = await asyncio.wait(
            tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        failed = [task for task in done if task.exception() is not None]
        if not failed and not pending:
            return [task.result() for task in tasks]
        if failed and pending:
            await asyncio.wait(pending, timeout=_GRACE_S)
    finally:
        for task in tasks:
            task.cancel()
    errors = {
        rank: translated(error, what, rank, places)
        for rank, task in enumerate(tasks)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None
    }
    if not errors:
        late = [rank for rank, task in enumerate(tasks) if task in pending]
        raise EngineError(
            f"{what}: no answer within {timeout_s:.0f} s from {_where(late[0], places)}"
        )
    told_on_purpose = [e for e in errors.values() if type(e) is not EngineError]
    raise (told_on_purpose or list(errors.values()))[0]


def translated(
    error: BaseException, what: str, rank: int, places: Sequence[ProcessAddress]
) -> TributaryError:
    """What a Ray call raised as one of our errors: our own is unwrapped, others say where."""
    from ray.exceptions import OutOfMemoryError, RayTaskError

    cause = error.cause if isinstance(error, RayTaskError) else error
    if rank >= len(places) and isinstance(cause, TributaryError):
        return cause
    # Of a rank that was killed by whomever Ray says that it may have been for memory.
    by_monitor = isinstance(cause, OutOfMemoryError) or "running low on memory" in str(cause)
    if isinstance(cause, OutOfMemory) or by_monitor:
        text = next(iter(str(cause).strip().splitlines()), "no message")
        told = OutOfMemory(f"{what} on {_where(rank, places)}: {text}", "trainer")
        told.__cause__ = error
        return told
    if isinstance(cause, TributaryError) and type(cause) is not EngineError:
        return cause
    named = "" if isinstance(cause, EngineError) else f"{type(cause).__name__}: "
    text = str(cause).strip() or "no message"
    wrapped = EngineError(f"{what} on {_where(rank, places)}: {named}{text.splitlines()[0]}")
    wrapped.__cause__ = error
    return wrapped


def _where(rank: int, places: Sequence[ProcessAddress]) -> str:
    if rank >= len(places):
        return "the owner of devices"
    place = places[rank]
    return f"rank {rank} ({place.host}, pid {place.pid}, log {place.log or 'unknown'})"
