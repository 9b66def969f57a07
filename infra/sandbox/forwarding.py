"""Leads a sandbox's own ports to allowed addresses: all that it reaches of any network.

The sockets listen within the sandbox's network; whoever connects to one is connected to its
address, and nothing that the sandbox says can choose another.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

CONNECT_SECONDS = 10.0
MOST_CONNECTIONS = 64
"""of one sandbox at a time; more wait"""
_CHUNK = 1 << 16


class Forwarder:
    """One sandbox's ports, each with a thread while it is open."""

    def __init__(self) -> None:
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._closed = False

    def forward(self, listeners: Sequence[int], addresses: Sequence[str]) -> None:
        """`listeners` are descriptors, which are closed with it; `addresses` their `host:port`."""
        for descriptor, address in zip(listeners, addresses, strict=True):
            listener = self._keep(socket.socket(fileno=descriptor))
            self._start(self._accept, listener, address)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for opened in self._open:
                _shut(opened)
            self._open.clear()

    def _accept(self, listener: socket.socket, address: str) -> None:
        while True:
            self._room.acquire()
            try:
                caller, _ = listener.accept()
            except OSError:  # closed with the sandbox
                self._room.release()
                return
            self._start(self._connect, self._keep(caller), address)

    def _connect(self, caller: socket.socket, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            callee = self._keep(socket.create_connection((host, int(port)), CONNECT_SECONDS))
            callee.settimeout(None)
            for end in (caller, callee):
                # Else the second part of a request waits until the first is acknowledged.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = self._start(_copy, callee, caller)
            _copy(caller, callee)
            back.join()
            self._drop(callee)
        except OSError:
            pass  # the caller sees a closed connection
        finally:
            self._drop(caller)
            self._room.release()

    def _keep(self, opened: socket.socket) -> socket.socket:
        with self._lock:
            self._open.add(opened)
            if self._closed:
                _shut(opened)
        return opened

    def _drop(self, opened: socket.socket) -> None:
        with self._lock:
            self._open.discard(opened)
        _shut(opened)

    @staticmethod
    def _start(call: Callable[..., object], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        thread.start()
        return thread


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
    opened.close()
