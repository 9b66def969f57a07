"""Connections of clients that nobody knows yet: the head of a request has a size and a time.

uvicorn's own protocol keeps every header that comes, and waits for the next one without an end, so
whoever reaches the port fills the memory and the table of open files before any key is asked for.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 256 << 10
"""that may come without completing a head, a piece of a body or a request; one more read of a
socket, which asyncio bounds, may come with them"""
HEAD_S = 60.0
"""from a connection's begin, or from the first byte of a further request, to the head's end"""


class BoundedHeads(HttpToolsProtocol):
    """Bounds the heads of requests, for `uvicorn.Config(http=...)`. What breaks a bound loses its
    connection."""

    _num_bytes = 0
    """since something was complete"""
    _is_in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MOST_BYTES:
            self.transport.abort()
        elif self._is_in_head and self._num_bytes and not self.transport.is_closing():
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._num_bytes, self._is_in_head = 0, False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_bytes, self._is_in_head = 0, True
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def most_connections() -> int:
    """Half of the files that this process may open: it has others to open, too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files // 2 if files > 0 else 1 << 16
