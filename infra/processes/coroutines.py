"""Coroutines: run several at once, all over before an error is raised; tell who cancels a task;
keep waits for others out of time limits; show where suspended ones stand (`faulthandler` and py-spy
see threads only)."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import os
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import FrameType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from infra.home import SOURCE_ROOT

_DEEPEST = 40
A = TypeVar("A")
B = TypeVar("B")
_MOST_PROGRAMS = 32
"""threads that wait for programs"""
Given = ParamSpec("Given")
Found = TypeVar("Found")


def task_stacks() -> str:
    """Show every unfinished task of this process with its coroutines' frames, outermost first.

    Tasks that wait at the same place are shown once, with their number and some of their names.
    Safe to call from any thread, also while an event loop is stuck.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    for task in _tasks():
        frames = tuple(_line(frame) for frame in frames_of(task.get_coro()))
        names.setdefault(frames, []).append(task.get_name())
    blocks = [
        "\n".join([f"{len(found)} x {', '.join(_shown(found))}", *(f"  {line}" for line in frames)])
        for frames, found in sorted(names.items(), key=lambda item: -len(item[1]))
    ]
    return "\n".join(blocks) + "\n" if blocks else "no unfinished task\n"


def frames_of(awaited: Any) -> list[FrameType]:
    """Frames of a suspended coroutine and of what it awaits, outermost first."""
    frames: list[FrameType] = []
    while awaited is not None and len(frames) < _DEEPEST:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames


def place_of(frames: list[tuple[str, int, str]]) -> str:
    """Return where a user's code stands, of (file, line, function) innermost first, e.g. `my.py:12
    in f`.

    The innermost frame that is neither of Python, nor of a package, nor ours.
    """
    others = (os.path.dirname(os.__file__), str(SOURCE_ROOT / "infra"), "<")
    for file, line, function in frames:
        if not file.startswith(others) and "site-packages" not in file:
            return f"{file.rpartition('/')[2]}:{line} in {function}"
    return ""


def _tasks() -> list[asyncio.Task[Any]]:
    # asyncio lists the tasks of one loop only, and for each Python version in another way.
    found = [o for o in gc.get_objects() if issubclass(type(o), asyncio.Task)]
    return [task for task in found if not task.done()]


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f'File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'


def _shown(names: list[str], count: int = 4) -> list[str]:
    more = [f"and {len(names) - count} more"] if len(names) > count else []
    return sorted(Counter(names))[:count] + more


async def all_or_first_error(work: Sequence[Coroutine[Any, Any, A]]) -> list[A]:
    """The results in order; or the first error in that order, once every one has ended."""
    made = await asyncio.gather(*work, return_exceptions=True)
    results: list[A] = []
    for each in made:
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results


async def run_both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Run both at once; when one fails the other is cancelled and awaited, then the error is
    raised."""
    one, two = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(one, two)
    except BaseException:
        one.cancel()
        two.cancel()
        await asyncio.gather(one, two, return_exceptions=True)
        raise


async def end_tasks(tasks: Collection[asyncio.Task[Any]], within_s: float) -> None:
    """Cancel them, and wait so long for what they have to close."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=within_s)


Hold: TypeAlias = Callable[[], AbstractContextManager[object]]
"""what a time limit gives, which runs on only outside its blocks"""
_hold: ContextVar[Hold] = ContextVar("hold", default=nullcontext)


def limit_heeds_turns(hold: Hold) -> None:
    """From now on, in this task and those that it starts, waits for a turn hold a time limit."""
    _hold.set(hold)


def waiting_for_turn() -> AbstractContextManager[object]:
    """While the block runs, this coroutine waits for others, or has a limit of its own: no time of
    whoever called it is spent."""
    return _hold.get()()


def is_told_to_end() -> bool:
    """Return whether somebody cancels the current task. Or else a CancelledError that it sees comes
    from within: of another task, for which it waits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def wait_for_program(
    call: Callable[Given, Found], *given: Given.args, **named: Given.kwargs
) -> Found:
    """Return what the call returns, which waits for a program that rewards or tools run: a model's
    may take its whole time. An event loop's own threads are few, and the rest of a stage needs
    them: journals, the health of servers, the ends of sandboxes."""
    run = functools.partial(contextvars.copy_context().run, call, *given, **named)
    return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), run)


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return this process's threads: a fork has none of its parent's."""
    return ThreadPoolExecutor(_MOST_PROGRAMS, thread_name_prefix="programs")
