"""Threads that wait for programs which rewards and tools run; a model's may take its whole time.

An event loop's own threads are few, and the rest of a stage needs them: journals, the health of
servers, the ends of sandboxes. So none of them waits for a program.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_MOST = 32
Given = ParamSpec("Given")
Found = TypeVar("Found")


async def wait_for_program(
    call: Callable[Given, Found], *given: Given.args, **named: Given.kwargs
) -> Found:
    """What the call returns, from one of these threads."""
    run = functools.partial(contextvars.copy_context().run, call, *given, **named)
    return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), run)


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Of this process: a fork has none of its parent's."""
    return ThreadPoolExecutor(_MOST, thread_name_prefix="programs")
