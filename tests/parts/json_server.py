"""A small HTTP server of JSON, for what asks a server and needs no engine behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any, TypeAlias

Answer: TypeAlias = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""status and content for a path and a body, which is empty if the request has none; bytes are sent
as they are"""


@contextmanager
def json_server(answer: Answer, port: int = 0) -> Generator[int]:
    """Its port, on the loopback address: `port`, or any; it ends with the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*answer(self.path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(*answer(self.path, json.loads(body or b"{}")))

        do_PATCH = do_POST

        def _send(self, status: int, content: Any) -> None:
            self.send_response(status)
            self.end_headers()
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    with serving(server):
        yield server.server_port


@contextmanager
def serving(server: BaseServer) -> Generator[None]:
    """The server answers in a thread of its own, and is closed at the end of the block, at once:
    by default it would look every half a second whether it is over."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
