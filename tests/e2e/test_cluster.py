"""Ray jobs on a real head."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from unittest.mock import patch

import pytest

from infra.errors import InfrastructureError
from infra.processes.network import free_ports
from infra.stack import Stack
from infra.stack.cluster import Cluster
from tests.parts.ray_head import RayHead, ray_head

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
    with ray_head(RayHead("the only line\n", loses=2)) as head:
        began = time.monotonic()
        lines: list[str] = []
        assert Cluster(head.url).follow("x", lines.append, NEVER, look=0.2) == "succeeded"
    assert lines == ["the only line"]
    assert head.asked[:3] == ["/api/jobs/x"] * 3
    assert time.monotonic() - began < 10


LINES = ["first", "", "ümläut " * 300, "x" * 2500, "last"]
LOG = "".join(f"{line}\n" for line in LINES)


@pytest.mark.parametrize(
    "cuts", [[], [0], [3], [6, 1], [1000, 999, 3000], [len(LOG)], [2600, 2600]]
)
def test_a_log_that_is_sent_over_several_connections_is_handed_over_once(cuts: list[int]) -> None:
    lines: list[str] = []
    with (
        patch("infra.stack.cluster._LONGEST_PAUSE_SECONDS", 0.01),
        ray_head(RayHead(LOG, cuts=cuts)) as head,
    ):
        assert Cluster(head.url).follow("x", lines.append, NEVER, poll=0.0) == "succeeded"
    assert lines == LINES
    assert head.connections == len(cuts) + 1
    assert head.sent == len(LOG) + sum(min(cut, len(LOG)) for cut in cuts), "no connection more"


@pytest.mark.parametrize(("cuts", "found"), [([], LINES), ([3], LINES), ([3] * 9, ["fir"])])
def test_the_end_of_a_job_does_not_wait_for_lines_that_cannot_be_had(
    cuts: list[int], found: list[str]
) -> None:
    lines: list[str] = []
    with ray_head(RayHead(LOG, cuts=cuts, over=1)) as head:
        began = time.monotonic()
        assert Cluster(head.url).follow("x", lines.append, NEVER, poll=0.0) == "succeeded"
    assert lines == found
    assert time.monotonic() - began < 5


def test_a_log_that_breaks_at_the_same_place_is_not_sent_each_second() -> None:
    """Ray's stream ends at a byte that is no UTF-8."""
    lines: list[str] = []
    let_go = threading.Event()
    threading.Timer(1.5, let_go.set).start()
    with ray_head(RayHead(LOG, cuts=[1000] * 99)) as head:
        Cluster(head.url).follow("x", lines.append, let_go, poll=0.01)
    assert head.connections <= 3
    assert LOG[:1000].startswith("\n".join(lines))
