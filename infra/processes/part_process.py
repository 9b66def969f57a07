"""A user's reward or environment in a separate process: its calls cannot stall or end a stage.

    caller ── PartRequest ──▶ `part_worker`: one process, one event loop ── PartReply ──▶ caller

A thread would not do. It cannot be ended, so every call that hangs would leave one behind; and one
that holds the interpreter's lock (a regular expression that backtracks, a huge power) would stop
the whole stage. A process is killed and replaced.

A call's time counts from its start in the process. A coroutine that waits too long is cancelled
there. Where the process itself is stuck, a signal makes it write its stack, then it is killed: the
call that began last is the one that hangs, and the others are asked again of its successor. After
`MAX_HUNG` in a row only one call at a time is let through until one succeeds: a part that always
hangs costs minutes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from infra.code.undeclared_reads import pass_on
from infra.errors import InputError
from infra.processes.coroutines import place_of
from infra.processes.part_worker import (
    PART,
    STACK_SIGNAL,
    PartReply,
    PartRequest,
    Raised,
    framed,
    read_frame,
)
from infra.secret_references import for_part

START_SECONDS = 120.0
"""what the part's imports and constructor may take"""
GRACE_SECONDS = 3.0
"""how long after a call's limit a process that is not stuck has said that the call was late"""
MAX_HUNG = 4
"""calls that hang or lose their process one after the other before the part counts as broken"""
MAX_TRIES = 2
"""how often a call is started if its process dies during the call"""
MAX_LOGGED = 20
STACK_SECONDS = 1.0
_EXIT_SECONDS = 1.0
_COMMAND = "import sys; from infra.processes.part_worker import main; main(*map(int, sys.argv[1:]))"
_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
_log = logging.getLogger(__name__)


class PartFailed(Exception):
    """A call gave no result. The text continues the part's name: `hung: no answer in 60 s`."""


class PartRaised(PartFailed):
    """The part's own code raised."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(f"raised {raised}")
        self.types, self.text = raised.types, raised.text


@dataclass(slots=True)
class _Call:
    request: PartRequest
    about: str
    answer: asyncio.Future[Any]
    tries: int = 0
    has_begun: bool = False

    def fail(self, error: PartFailed) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True)
class _Process:
    """One living worker, as its owner holds it."""

    popen: subprocess.Popen[bytes]
    requests: asyncio.WriteTransport
    replies: asyncio.BaseTransport
    stacks: IO[bytes]
    said: float
    """when it last said anything, on the loop's clock"""
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: str = ""
    is_ended: bool = False


class PartProcess:
    """One part's process, replaced when it hangs or dies. For one event loop."""

    def __init__(
        self, name: str, factory: str, arguments: tuple[Any, ...], timeout_s: float
    ) -> None:
        """`factory` (`module:function`) makes the part from `arguments`, in the process."""
        self.name = name
        self.timeout_s = timeout_s
        self._given = (factory, arguments)
        self._process: _Process | None = None
        self._newest: _Process | None = None
        self._starting = asyncio.Lock()
        self._calls: dict[int, _Call] = {}
        self._number = PART
        self._hung = 0
        self._logged = 0
        self._watch: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        _known.add(self)

    async def start(self) -> None:
        """Raises InputError when the part cannot be built."""
        async with self._starting:
            if self._process is not None:
                return
            process = await self._spawn()
            try:
                await asyncio.wait_for(process.is_ready.wait(), START_SECONDS)
            except TimeoutError:
                place = _place(_stack(process))
                process.refusal = (
                    f"imports and constructor take more than {START_SECONDS:g} s{place}"
                )
            except asyncio.CancelledError:
                self._end(process)
                raise
            if process.refusal:
                self._end(process)
                raise InputError(f"{self.name} cannot be built: {process.refusal}")
            self._process = process

    async def call(
        self, method: str, *arguments: Any, about: str, target: int = PART, keeps: bool = False
    ) -> Any:
        """Return what a method of the part returns, or of an object `target` that it made (`keeps`:
        the result is such an object, and the answer its number). `about` is for the log, e.g. a
        problem's id. Raises PartFailed."""
        if self._hung >= MAX_HUNG and self._calls:
            raise PartFailed(f"was not called: {self._hung} calls in a row hung")
        self._number += 1
        request = PartRequest(self._number, target, method, arguments, self.timeout_s, keeps)
        call = _Call(request, about, asyncio.get_running_loop().create_future())
        self._calls[request.id] = call
        try:
            await self._ask([call])
            return await call.answer
        finally:
            self._calls.pop(request.id, None)

    async def close(self) -> None:
        """End the process. What is still asked of it is cancelled."""
        for call in self._calls.values():
            call.answer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self._process = None
        if self._newest is not None:  # it may not be ready yet
            self._end(self._newest)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stack(self) -> str:
        """Return where its process stands now; also while that is stuck. Callable from any
        thread."""
        process = self._process
        return "(no process)\n" if process is None else f"{process.popen.pid}: {_stack(process)}"

    async def _ask(self, calls: list[_Call]) -> None:
        """Send the calls to the process; to a new one where the last was lost."""
        try:
            await self.start()
        except InputError as error:
            self._hung += 1
            for call in calls:
                call.fail(PartFailed(f"lost its process: {error}"))
            return
        process, loop = self._process, asyncio.get_running_loop()
        if process is None:  # closed meanwhile
            return
        if not any(call.has_begun for call in self._calls.values()):
            process.said = loop.time()
        for call in calls:
            call.has_begun = False
            process.requests.write(framed(call.request))
        if self._watch is None:
            self._watch = loop.call_later(self.timeout_s + GRACE_SECONDS, self._look, None)

    async def _spawn(self) -> _Process:
        loop = asyncio.get_running_loop()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        stacks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by _end
        inherited = (theirs_in, theirs_out, stacks.fileno())
        popen = subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND, str(os.getpid()), *map(str, inherited)],
            pass_fds=inherited, stdin=subprocess.DEVNULL, start_new_session=True,
            env=for_part(os.environ, self._given),
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        reader = asyncio.StreamReader()
        replies, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb", buffering=0)
        )
        requests, _ = await loop.connect_write_pipe(
            asyncio.BaseProtocol, os.fdopen(ours_out, "wb", buffering=0)
        )
        requests.write(framed((sys.path, *self._given)))
        process = self._newest = _Process(popen, requests, replies, stacks, loop.time())
        self._spawn_task(self._read(process, reader))
        return process

    async def _read(self, process: _Process, reader: asyncio.StreamReader) -> None:
        """Take what the process says up, until it is gone."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                reply: PartReply = await read_frame(reader)
                process.said = asyncio.get_running_loop().time()
                self._take(process, reply)
        code = await asyncio.to_thread(_wait, process.popen)
        if not process.is_ready.is_set():
            process.refusal = process.refusal or f"its process ended ({_ended(code)})"
            process.is_ready.set()
        elif process is self._process:
            self._lose(process, None, f"lost its process ({_ended(code)})")

    def _take(self, process: _Process, reply: PartReply) -> None:
        match reply.kind:
            case "ready":
                process.is_ready.set()
            case "refused":
                process.refusal = str(pickle.loads(reply.value))
                process.is_ready.set()
            case "began":
                if call := self._calls.get(reply.id):
                    call.has_begun = True
                    call.tries += 1
            case "warned":
                pass_on(pickle.loads(reply.value))
            case _:
                self._settle(process, reply)

    def _settle(self, process: _Process, reply: PartReply) -> None:
        call = self._calls.pop(reply.id, None)
        value = pickle.loads(reply.value)
        if reply.kind in ("done", "raised"):
            self._hung = 0
            if call is None or call.answer.done():
                return
            if reply.kind == "done":
                call.answer.set_result(value)
            else:
                call.fail(PartRaised(value))
            return
        why = f"hung: no answer within {self.timeout_s:g} s{f', at {value}' if value else ''}"
        if reply.kind == "stuck":
            self._lose(process, call, why)
        else:
            self._hung += 1
            self._fail(call, why)

    def _look(self, suspected: float | None) -> None:
        """See whether the process is stuck: calls wait, and it has said nothing for too long, also
        when looked at again (this loop itself may have stood still)."""
        self._watch = None
        process, loop = self._process, asyncio.get_running_loop()
        if process is None or not self._calls:
            return
        due = process.said + self.timeout_s + GRACE_SECONDS
        if loop.time() < due:
            self._watch = loop.call_at(due, self._look, None)
        elif suspected != process.said:
            self._watch = loop.call_later(STACK_SECONDS / 2, self._look, process.said)
        else:
            stack = _stack(process)
            _log.warning("%s is stuck:\n%s", self.name, stack)
            begun = [call for call in self._calls.values() if call.has_begun]
            why = f"hung: no answer within {self.timeout_s:g} s{_place(stack)}"
            self._lose(process, begun[-1] if begun else None, why)

    def _lose(self, process: _Process, culprit: _Call | None, why: str) -> None:
        """End the process; calls that did not cause this are repeated."""
        self._process = None
        self._end(process)
        self._hung += 1
        self._fail(culprit, why)
        again: list[_Call] = []
        for call in [c for c in self._calls.values() if not c.answer.done()]:
            if call.request.target != PART or call.tries >= MAX_TRIES or self._hung >= MAX_HUNG:
                call.fail(PartFailed(why if culprit is None else f"{why}, in another call of it"))
            else:
                again.append(call)
        if again:
            self._spawn_task(self._ask(again))

    def _fail(self, call: _Call | None, why: str) -> None:
        if call is None:
            return
        self._calls.pop(call.request.id, None)
        call.fail(PartFailed(why))
        if self._logged < MAX_LOGGED:
            self._logged += 1
            _log.warning("%s %s, on %s", self.name, why, call.about)

    def _end(self, process: _Process) -> None:
        if process.is_ended:
            return
        process.is_ended = True
        with suppress(ProcessLookupError):
            os.killpg(process.popen.pid, signal.SIGKILL)  # also what it started
        if not process.requests.is_closing():
            process.requests.abort()
        process.stacks.close()

        async def reap() -> None:
            await asyncio.to_thread(_wait, process.popen)
            process.replies.close()

        self._spawn_task(reap())

    def _spawn_task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_known: weakref.WeakSet[PartProcess] = weakref.WeakSet()


def part_stacks() -> list[tuple[str, str]]:
    """Name and present stack of each part of this process that has one of its own."""
    return [(part.name, part.stack()) for part in list(_known)]


def _wait(popen: subprocess.Popen[bytes]) -> int:
    try:
        return popen.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:  # it closed its pipe and lives
        popen.kill()
        return popen.wait()


def _ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _stack(process: _Process) -> str:
    """Return what it writes of itself when it is asked by a signal; nothing if it cannot even do
    that.
    """
    try:
        stacks = process.stacks.fileno()
        before = os.fstat(stacks).st_size
        process.popen.send_signal(STACK_SIGNAL)
        deadline, found = time.monotonic() + STACK_SECONDS, b""
        while time.monotonic() < deadline:
            time.sleep(0.02)
            now = os.pread(stacks, 1 << 16, before)
            if now and now == found:
                break
            found = now
    except (OSError, ValueError):  # gone
        return "(no stack)\n"
    return found.decode(errors="replace") or "(no stack)\n"


def _place(stack: str) -> str:
    frames = [(file, int(line), function) for file, line, function in _FRAME.findall(stack)]
    place = place_of(frames)
    return f", at {place}" if place else ""
