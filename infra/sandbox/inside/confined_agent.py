"""The agent: the one process of a sandbox that its owner talks to.

It runs under the sandbox's own confinement, so a path or a link that leads outside leads it
nowhere either. Its owner sends one request at a time and takes no answer on trust.

A child reads and handles each request, and becomes the program where it is a command. So the memory
of which later programs are forks holds no content of earlier requests.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from typing import Any, NoReturn

from infra.sandbox.confine import libc
from infra.sandbox.inside.agent_messages import (
    Header,
    beginning,
    encode,
    read_exactly,
    receive,
    write_all,
)
from infra.sandbox.inside.commands import OwnerGone, Pipes, Place, watch
from infra.sandbox.inside.programs import become
from infra.sandbox.trees import empty, pack, read_file, unpack, used, write_file

_NOT_DUMPABLE = 0
_ANSWERED, _GONE = 0, 1
"""how a child ends that handled a request itself"""
_FAULTS = (OSError, ValueError, RecursionError, MemoryError)


def serve(source: int, sink: int, place: Place) -> None:
    """Answers requests until the owner closes its end. Says `{"ready": true}` first."""
    libc.prctl(libc.PR_SET_DUMPABLE, _NOT_DUMPABLE)
    write_all(sink, encode({"ready": True}))
    while _serve_next(source, sink, place):
        pass


def _serve_next(source: int, sink: int, place: Place) -> bool:
    """False once the owner has gone."""
    select.select([source], [], [])
    pipes, agent = Pipes(), os.getpid()
    child = os.fork()
    if child == 0:
        _handle((source, sink), place, pipes, agent)
    pipes.close_written()
    try:
        limits = _limits(pipes.report)
        if limits is None:
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status) == _ANSWERED
        with watch(place, child, pipes, limits, source) as (answer, outputs):
            write_all(sink, beginning(answer, sum(map(len, outputs))))
            for output in outputs:
                write_all(sink, output)
    except OwnerGone:
        return False
    except OSError as error:
        write_all(sink, encode(_told(error)))
    finally:
        pipes.close_read()
    return True


def _limits(report: int) -> dict[str, Any] | None:
    """Return the limits of the command that a child is about to become; None where it answered by
    itself."""
    told = b""
    while piece := os.read(report, 1):
        if piece == b"\n":
            return json.loads(told)
        told += piece
    return None


def _handle(channel: tuple[int, int], place: Place, pipes: Pipes, agent: int) -> NoReturn:
    source, sink = channel
    code = _GONE
    try:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:
            return os._exit(code)
        try:
            request, body = receive(lambda size: read_exactly(source, size))
            if request["do"] == "exec":
                _become(request, body, place, pipes, agent)
            answer, content = _answer(place, request, body, sink)
        except _FAULTS as error:
            answer, content = _told(error), b""
        write_all(sink, encode(answer, content))
        code = _ANSWERED
    except EOFError:
        pass
    finally:
        os._exit(code)


def _become(request: Header, body: bytes, place: Place, pipes: Pipes, agent: int) -> NoReturn:
    stdin = os.memfd_create("stdin", os.MFD_CLOEXEC)
    write_all(stdin, body)
    os.lseek(stdin, 0, os.SEEK_SET)
    limits, (outputs, errors, report) = request["limits"], pipes.written
    command, environment = request["command"], request["environment"]
    write_all(report, json.dumps(limits).encode() + b"\n")
    become(command, (stdin, outputs, errors, report), place.folder, environment, limits, agent)


def _answer(place: Place, request: Header, body: bytes, sink: int) -> tuple[Header, bytes]:
    match request["do"]:
        case "write":
            _check_room(place, len(body), request["disk"])
            write_file(_below(place, request["path"]), body)
        case "read":
            return {}, read_file(_below(place, request["path"]), request["most"])
        case "snapshot":
            return {}, pack(place.folder, 2 * request["disk"])
        case "restore":
            empty(place.folder)
            unpack(body, place.folder)
            try:
                _check_room(place, 0, request["disk"])
            except ValueError:
                empty(place.folder)
                raise
        case "listen":
            return _listen(request["ports"], sink)
        case unknown:
            raise ValueError(f"unknown request {unknown!r}")
    return {}, b""


def _told(error: BaseException) -> Header:
    return {"error": f"{type(error).__name__}: {error}"}


def _listen(ports: list[int], sink: int) -> tuple[Header, bytes]:
    """Sockets that listen within the sandbox, handed out: the owner decides where they lead."""
    opened: list[socket.socket] = []
    try:
        for port in ports:
            listener = socket.create_server(("127.0.0.1", port), backlog=64)
            opened.append(listener)
        with socket.socket(fileno=os.dup(sink)) as owner:
            socket.send_fds(owner, [b"\0"], [listener.fileno() for listener in opened])
    finally:
        for listener in opened:
            listener.close()
    return {}, b""


def _check_room(place: Place, size: int, disk: int) -> None:
    if place.watch_disk and used(place.folder) + size > disk:
        raise ValueError(f"the files would be more than {disk} bytes")


def _below(place: Place, path: str) -> str:
    return os.path.join(place.folder, path)
