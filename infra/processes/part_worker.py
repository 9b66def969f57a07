"""The process behind a `PartProcess`: builds a user's part and calls it, as its owner asks.

All calls run in one thread with one event loop, as in a program of the user's own: an `async def`
runs beside others, a plain `def` alone. A call that blocks keeps all others from answering; the
owner keeps the time, asks for the stack by a signal, and ends the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import inspect
import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from infra.code.undeclared_reads import watch_reads
from infra.processes.coroutines import frames_of, place_of
from infra.sandbox.confine import libc
from infra.user_files import InstalledFiles, hooks_on_path

PART = 0
"""number of the part itself; objects that it made have numbers of their own"""
CANCEL_SECONDS = 1.0
"""what a late call may take to end when it is cancelled"""
STACK_SIGNAL = signal.SIGUSR1
_HEAD = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class PartRequest:
    """One call of a method of the part, or of an object that it made."""

    id: int
    target: int
    method: str
    arguments: tuple[Any, ...]
    seconds: float
    """what it may take; then it is cancelled"""
    keeps: bool = False
    """its result stays here, and the answer is its number"""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that left a part; its class may be unknown to the owner."""

    types: tuple[str, ...]
    """its class and the classes that this inherits, as `module.Name`"""
    text: str

    def __str__(self) -> str:
        return f"{self.types[0].rpartition('.')[2]}: {self.text}"


@dataclass(frozen=True, slots=True)
class PartReply:
    """The result of a call. `value` is pickled by itself: only its reader can fail at it.

    done: its result; raised, refused (the part was not built): a `Raised`; late: where it stood;
    stuck: the same, and it goes on although it was cancelled; warned: a sentence for the user.
    """

    id: int
    kind: Literal["ready", "refused", "began", "done", "raised", "late", "stuck", "warned"]
    value: bytes = b""


def framed(message: object) -> bytes:
    data = pickle.dumps(message)
    return _HEAD.pack(len(data)) + data


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """Raises IncompleteReadError at the end of the stream."""
    (length,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return pickle.loads(await reader.readexactly(length))


class Worker:
    """Calls the part and the objects that it made."""

    def __init__(self, part: object, replies: BinaryIO) -> None:
        self._objects: dict[int, Any] = {PART: part}
        self._replies = replies
        self._tasks: set[asyncio.Task[None]] = set()

    def reply(self, reply: PartReply) -> None:
        """Sent immediately: the next call may block this process forever."""
        self._replies.write(framed(reply))
        self._replies.flush()

    async def serve(self, requests: asyncio.StreamReader) -> None:
        while True:
            task = asyncio.create_task(self._call(await read_frame(requests)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, request: PartRequest) -> None:
        self.reply(PartReply(request.id, "began"))
        task, late = asyncio.current_task(), list[bytes]()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(
            request.seconds, self._cancel, request, task, late
        )
        try:
            reply = await self._answer(request)
        except asyncio.CancelledError as error:  # for it was late, or of the part's own making
            reply = PartReply(request.id, "raised", _pickled(error))
        timer.cancel()
        self.reply(PartReply(request.id, "late", late[0]) if late else reply)

    async def _answer(self, request: PartRequest) -> PartReply:
        try:
            value = getattr(self._objects[request.target], request.method)(*request.arguments)
            if inspect.isawaitable(value):
                value = await value
            if request.keeps:
                self._objects[request.id], value = value, request.id
            if request.method == "close":
                self._objects.pop(request.target, None)
            return PartReply(request.id, "done", pickle.dumps(value))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # also SystemExit: no part ends its process by it
            return PartReply(request.id, "raised", _pickled(error))

    def _cancel(self, request: PartRequest, task: asyncio.Task[Any], late: list[bytes]) -> None:
        """Put where a call stands that takes too long into `late`, and cancel it."""
        frames = frames_of(task.get_coro())
        stack = [(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames]
        late.append(pickle.dumps(place_of(stack[::-1])))
        task.cancel()

        def check() -> None:
            if not task.done():
                self.reply(PartReply(request.id, "stuck", late[0]))

        asyncio.get_running_loop().call_later(CANCEL_SECONDS, check)


def _pickled(error: BaseException) -> bytes:
    types = tuple(f"{t.__module__}.{t.__qualname__}" for t in type(error).__mro__)
    return pickle.dumps(Raised(types, str(error)))


async def _serve(part: object, requests: BinaryIO, replies: BinaryIO) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), requests
    )
    worker = Worker(part, replies)
    worker.reply(PartReply(PART, "ready"))
    await worker.serve(reader)


def main(owner: int, requests: int, replies: int, stacks: int) -> None:
    """Serve until the owner closes its end; the three numbers are inherited file descriptors."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:  # it died before the line above
        return
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    incoming, outgoing = os.fdopen(requests, "rb", buffering=0), os.fdopen(replies, "wb")
    (length,) = _HEAD.unpack(incoming.read(_HEAD.size))
    path, factory, arguments = pickle.loads(incoming.read(length))
    sys.path[:] = path

    def warn(said: str) -> None:
        outgoing.write(framed(PartReply(PART, "warned", pickle.dumps(said))))
        outgoing.flush()

    watch_reads(InstalledFiles(hooks_on_path()), warn)
    try:
        module, _, name = factory.partition(":")
        build: Callable[..., object] = getattr(importlib.import_module(module), name)
        part = build(*arguments)
    except BaseException as error:  # also SystemExit
        outgoing.write(framed(PartReply(PART, "refused", _pickled(error))))
        outgoing.flush()
        return
    try:
        asyncio.run(_serve(part, incoming, outgoing))
    finally:
        os._exit(0)  # threads that the part left must not keep the process
