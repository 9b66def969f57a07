"""Ray's job API as a follower sees it: one job, its state, and its log on a websocket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

_PIECE = 1000
"""characters of a message, which end anywhere in a line"""


class RayHead:
    """Ends each of its first connections, and loses its first questions."""

    def __init__(self, log: str, cuts: Sequence[int] = (), loses: int = 0, over: int = 0) -> None:
        """`cuts`: characters that a connection gets before it breaks; `over`: connections after
        which the job is over, whether or not its log was sent."""
        self._log, self._cuts, self._loses, self._over = log, list(cuts), loses, over
        self._is_sent = False
        self.url = ""
        self.asked: list[str] = []
        self.connections = 0
        self.sent = 0
        """characters of the log"""
        self.ended = threading.Event()

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        self.asked.append(request.path)
        if len(self.asked) <= self._loses:
            self.ended.wait(60)
        if request.path.endswith("/logs/tail"):
            assert "Sec-WebSocket-Extensions" not in request.headers, "Ray's dashboard breaks it"
            return None
        is_over = self._is_sent or 0 < self._over <= self.connections
        told = json.dumps({"status": "SUCCEEDED" if is_over else "RUNNING"}).encode()
        length = Headers({"Content-Length": str(len(told)), "Connection": "close"})
        return Response(HTTPStatus.OK, "OK", length, told)

    def send_log(self, connection: ServerConnection) -> None:
        """One piece at each question for the state: a log that grows while it is followed."""
        self.connections += 1
        cut = self._cuts.pop(0) if self._cuts else None
        log = self._log[:cut]
        for at in range(0, len(log), _PIECE):
            looks = len(self.asked)
            connection.send(log[at : at + _PIECE])
            self.sent += min(_PIECE, len(log) - at)
            until = time.monotonic() + 0.05
            while len(self.asked) == looks and time.monotonic() < until:
                time.sleep(0.0005)
        if cut is not None:
            connection.close(1011)
            return
        self._is_sent = True


@contextmanager
def ray_head(head: RayHead) -> Generator[RayHead]:
    with serve(head.send_log, "127.0.0.1", 0, process_request=head.answer) as server:
        head.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield head
        finally:
            head.ended.set()
            server.shutdown()
            thread.join()
