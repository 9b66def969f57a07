"""The process that the host agent's child processes are children of.

`python -m engines.devices.process_parent MODULE` is single-threaded and does nothing but start and
stop children as its owner asks, one JSON line a request over its standard input and output. MODULE
(`Preloaded`) serves: on a host without CUDA it is imported once, with all that it needs, and each
server is a fork (2 s instead of 15); with CUDA each server is a new process.

It dies with its owner: the end of its input means that the owner is gone, and the kernel kills a
child whose parent is gone, so nothing stays behind however the owner ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from io import FileIO
from typing import Any, BinaryIO, NoReturn, Protocol, cast

from infra.cuda import has_cuda
from infra.processes.leftovers import leftovers_of, remove_leftovers

_PR_SET_PDEATHSIG = 1
REAP_S = 0.5
"""how soon a child that ended is noticed when nobody asks"""
END_S = 5.0


class Preloaded(Protocol):
    """What a module offers that children run."""

    def preload(self) -> None:
        """Import what `serve` needs, so that a fork of this process starts at once."""
        ...

    def serve(self, options: dict[str, Any]) -> None:
        """Run until told to stop; `python -m MODULE OPTIONS` does the same in a new process."""
        ...


class ProcessParent:
    """Children by pid, with exit codes of those that ended."""

    def __init__(self, module: str, preloaded: Preloaded | None) -> None:
        self._module, self._preloaded = module, preloaded
        self._children: set[int] = set()
        self._ended: dict[int, int] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "serve":
                return {"pid": self._start(request, lambda: self._serve(request["options"]))}
            case "run":
                return {"pid": self._start(request, lambda: _execute(request["command"]))}
            case "status":
                self.reap()
                return {"exit": self._ended.get(request["pid"])}
            case "signal":
                self._signal(request["pid"], request["signal"])
                return {}
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")

    def end(self) -> None:
        """Kill every child and everything it started in its own session, and clear up after it."""
        for pid in list(self._children):
            self._signal(pid, signal.SIGKILL)
        deadline = time.monotonic() + END_S
        while self._children and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.01)

    def _serve(self, options: dict[str, Any]) -> None:
        if self._preloaded is not None:
            self._preloaded.serve(options)
        else:
            _execute([sys.executable, "-m", self._module, json.dumps(options)])

    def _start(self, request: dict[str, Any], body: Callable[[], None]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.environ.update(request["environment"])
            _become_child(parent, request["log"], body)
        self._children.add(pid)
        return pid

    def _signal(self, pid: int, number: int) -> None:
        self.reap()
        if pid in self._children:
            try:
                os.killpg(pid, number)
            except ProcessLookupError:  # a young one has no group of its own yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def reap(self) -> None:
        """Take note of children that ended, however they did, and remove what they left."""
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._children.discard(pid)
            self._ended[pid] = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(ProcessLookupError):  # what it left in its group
                os.killpg(pid, signal.SIGKILL)
            remove_leftovers(leftovers_of(pid))


def _become_child(parent: int, log: str, body: Callable[[], None]) -> NoReturn:
    """In the fork: own session, own log, no way back to the parent's pipes."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 64)
        body()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _execute(command: list[str]) -> None:
    os.execvp(command[0], command)


def _converse(parent: ProcessParent, requests: FileIO, replies: BinaryIO) -> None:
    """Answer one line after the other until the owner closes its end. `requests` has no buffer: a
    line in one is nothing that `select` sees."""
    while True:
        while not select.select([requests], [], [], REAP_S)[0]:
            parent.reap()
        line = requests.readline()
        if not line:
            return
        try:
            reply = parent.answer(json.loads(line))
        except Exception as error:
            reply = {"error": repr(error)}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def main() -> None:
    # Imports may print: keep the reply channel to ourselves and send prints to the log.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # A Ctrl-C at the terminal is its owner's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, preloaded = sys.argv[1], None
    if module and not has_cuda():
        gc.disable()  # nearly all that imports make stays: looking for garbage costs seconds
        preloaded = cast("Preloaded", import_module(module))
        preloaded.preload()
        gc.enable()
        gc.collect()
        gc.freeze()  # shared pages stay shared when a child's collector runs
    replies.write(b'{"ready": true}\n')
    replies.flush()
    parent = ProcessParent(module, preloaded)
    try:
        with open(0, "rb", buffering=0, closefd=False) as requests:
            _converse(parent, requests, replies)
    finally:
        parent.end()


if __name__ == "__main__":
    main()
