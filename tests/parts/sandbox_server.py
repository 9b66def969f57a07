"""A server of remote sandboxes, as `docs/sandboxes.md` describes them, over the process kind."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infra.errors import InputError
from infra.sandbox.agent_sandbox import AgentSandbox
from infra.sandbox.kinds import process
from infra.sandbox.sandbox import Limits, SandboxLost, SandboxRefused, Snapshot

PREFIX = ["v1", "sandboxes"]


class Gone(Exception):
    """No sandbox has this id."""


class Server(ThreadingHTTPServer):
    """`sandboxes` maps an id to a sandbox, its idle bound and the moment it was last asked."""

    daemon_threads = True

    def __init__(self, key: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.key = key
        self.sandboxes: dict[str, tuple[AgentSandbox, float, float]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def end_idle(self) -> None:
        now = time.monotonic()
        for name, (sandbox, bound, asked) in list(self.sandboxes.items()):
            if now - asked > bound:
                del self.sandboxes[name]
                sandbox.stop()

    def sandbox(self, name: str) -> AgentSandbox:
        self.end_idle()
        if name not in self.sandboxes:
            raise Gone
        sandbox, bound, _ = self.sandboxes[name]
        self.sandboxes[name] = sandbox, bound, time.monotonic()
        return sandbox


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self._serve()

    do_GET = do_PUT = do_DELETE = do_POST

    def log_message(self, format: str, *args: Any) -> None: ...

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, answer = self._answer(body)
        except (SandboxRefused, InputError, ValueError) as error:
            status, answer = 422, str(error).encode()
        except (Gone, SandboxLost):
            status, answer = 404, b"no such sandbox"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _answer(self, body: bytes) -> tuple[int, bytes]:
        if not secrets.compare_digest(
            self.headers.get("Authorization", ""), f"Bearer {self.server.key}"
        ):
            return 401, b"the key is wrong"
        asked = urlsplit(self.path)
        parts = asked.path.strip("/").split("/")
        assert parts[:2] == PREFIX
        if len(parts) == 2:
            return 201, json.dumps({"id": self._start(json.loads(body))}).encode()
        sandbox = self.server.sandbox(parts[2])
        if self.command == "DELETE":
            del self.server.sandboxes[parts[2]]
            sandbox.stop()
            return 204, b""
        given = {name: values[0] for name, values in parse_qs(asked.query).items()}
        match self.command, parts[3]:
            case "POST", "exec":
                return 200, _run(sandbox, json.loads(body))
            case "PUT", "files":
                sandbox.write(given["path"], body)
            case "GET", "files":
                return 200, sandbox.read(given["path"], int(given["most"]))
            case "GET", "snapshot":
                return 200, sandbox.snapshot().packed
            case "PUT", "snapshot":
                sandbox.restore(Snapshot(body))
            case _:
                return 405, b"no such request"
        return 204, b""

    def _start(self, order: dict[str, Any]) -> str:
        name = secrets.token_hex(8)
        sandbox = process.start(Limits(**order["limits"]))
        self.server.sandboxes[name] = sandbox, order["idle_seconds"], time.monotonic()
        return name


def _run(sandbox: AgentSandbox, order: dict[str, Any]) -> bytes:
    result = sandbox.exec(
        order["command"],
        stdin=base64.b64decode(order["stdin"]),
        environment=order["environment"],
        limits=Limits(**order["limits"]),
    )
    ending = {"timeout": "timeout"}.get(
        result.status, "closed" if result.exit_code is not None else "quota"
    )
    answer = {
        "ending": ending,
        "exit_code": result.exit_code,
        "stdout": base64.b64encode(result.stdout.encode()).decode(),
        "stderr": base64.b64encode(result.stderr.encode()).decode(),
        "truncated": result.truncated,
        "seconds": result.seconds,
        "cpu_seconds": result.cpu_seconds,
    }
    return json.dumps(answer).encode()


@contextmanager
def sandbox_server(key: str = "key-of-the-test") -> Iterator[Server]:
    """A server on a free port, ended with all its sandboxes."""
    with Server(key) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            for sandbox, _, _ in server.sandboxes.values():
                sandbox.stop()
