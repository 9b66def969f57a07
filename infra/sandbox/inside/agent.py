"""The agent: the one process of a sandbox that its owner talks to.

It runs under the sandbox's own confinement, so a path or a link that leads outside leads it
nowhere either. Its owner sends one request at a time and takes no answer on trust.
"""

from __future__ import annotations

import os
import socket

from infra.sandbox.confine import libc
from infra.sandbox.inside.commands import Order, OwnerGone, Place, run
from infra.sandbox.inside.messages import Header, encode, read_exactly, receive, write_all
from infra.sandbox.trees import empty, pack, read_file, unpack, used, write_file

_NOT_DUMPABLE = 0


def serve(source: int, sink: int, place: Place) -> None:
    """Answers requests until the owner closes its end. Says `{"ready": true}` first."""
    libc.prctl(libc.PR_SET_DUMPABLE, _NOT_DUMPABLE)
    write_all(sink, encode({"ready": True}))
    while True:
        try:
            request, body = receive(lambda size: read_exactly(source, size))
        except EOFError:
            return
        try:
            answer, content = _answer(place, request, body, (source, sink))
        except OwnerGone:
            return
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            answer, content = {"error": f"{type(error).__name__}: {error}"}, b""
        write_all(sink, encode(answer, content))


def _answer(
    place: Place, request: Header, body: bytes, channel: tuple[int, int]
) -> tuple[Header, bytes]:
    source, sink = channel
    match request["do"]:
        case "exec":
            order = Order(
                request["command"], body, request["environment"], request["limits"], source
            )
            return run(place, order)
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
