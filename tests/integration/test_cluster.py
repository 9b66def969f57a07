"""Ray jobs on a real head."""

from __future__ import annotations

import sys
import threading
import uuid

import pytest

from infra.cluster import Cluster
from infra.errors import InfrastructureError
from infra.ports import free_ports
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
