"""Ray jobs on a real head."""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.cluster import Cluster
from infra.errors import InfrastructureError
from infra.processes.ports import free_ports
from infra.stack import Stack

pytestmark = pytest.mark.integration

SLOW_TO_STOP = """
import signal, sys, time
def save(*_):
    time.sleep(3.5)  # longer than Ray's own three seconds
    print("checkpoint")
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
print("ready")
while True:
    time.sleep(0.1)
"""


NEVER = threading.Event()


@pytest.fixture
def cluster(stack: Stack) -> Cluster:
    return Cluster.of(stack)


def new_id() -> str:
    return f"stage-test-{uuid.uuid4().hex[:8]}"


def test_a_job_is_followed_to_its_last_line_and_its_id_is_never_used_twice(
    cluster: Cluster,
) -> None:
    job, lines = new_id(), []
    code = "import os; print('x is', os.environ['X']); print('last', end='')"
    assert cluster.state(job) == "unknown"
    assert cluster.submit(job, [sys.executable, "-c", code], {"X": "1"}, {"run": "r"})
    assert not cluster.submit(job, [sys.executable, "-c", code], {"X": "2"}, {})
    assert cluster.follow(job, lines.append, NEVER) == "succeeded"
    assert "x is 1" in lines
    # Ray's own line on the job's start may come late, behind what has no newline.
    assert any(line.startswith("last") for line in lines)
    assert cluster.metadata(job) == {"run": "r"}
    remote = Cluster(cluster.dashboard)
    from_api: list[str] = []
    assert remote.follow(job, from_api.append, NEVER) == "succeeded"
    assert from_api == lines, "without the head's disk its API gives the lines"
    assert remote.tail(job, 1) == lines[-1:]


def test_a_stopped_job_has_time_for_its_checkpoint(cluster: Cluster) -> None:
    job = new_id()
    ready, states, lines = threading.Event(), [], []

    def on_line(line: str) -> None:
        lines.append(line)
        if line == "ready":
            ready.set()

    cluster.submit(job, [sys.executable, "-u", "-c", SLOW_TO_STOP], {}, {})
    follower = threading.Thread(target=lambda: states.append(cluster.follow(job, on_line, NEVER)))
    follower.start()
    assert ready.wait(120)
    assert cluster.stop(job) == "stopped"
    follower.join(30)
    assert states == ["stopped"]
    assert lines[-1] == "checkpoint"


def test_a_failed_job_says_so(cluster: Cluster) -> None:
    job = new_id()
    cluster.submit(job, [sys.executable, "-c", "raise SystemExit(4)"], {}, {})
    assert cluster.follow(job, lambda line: None, NEVER) == "failed"


def test_a_head_that_is_down_is_explained_after_the_window() -> None:
    (port,) = free_ports(1)
    cluster = Cluster(f"http://127.0.0.1:{port}")
    with pytest.raises(InfrastructureError, match="tributary up") as told:
        cluster.follow("stage-x", lambda line: None, NEVER, poll=0.05, outage=0.3)
    assert told.value.retryable


def test_a_question_that_the_head_loses_is_asked_again_soon() -> None:
    with lossy_head(loses=2) as (url, asked):
        began = time.monotonic()
        lines: list[str] = []
        assert Cluster(url).follow("x", lines.append, NEVER, look=0.2) == "succeeded"
    assert lines == ["the only line"]
    assert asked[:3] == ["/api/jobs/x"] * 3
    assert time.monotonic() - began < 10


@contextmanager
def lossy_head(loses: int) -> Iterator[tuple[str, list[str]]]:
    """A job API that never answers its first questions, as Ray's was seen to do; what was asked."""
    asked: list[str] = []
    end = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if len(asked) <= loses:
                end.wait(60)
                return
            is_log = self.path.endswith("/logs")
            body = {"logs": "the only line\n"} if is_log else {"status": "SUCCEEDED"}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        end.set()
        server.shutdown()
        thread.join()
        server.server_close()
