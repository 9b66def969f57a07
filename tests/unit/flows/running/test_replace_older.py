"""When a flow's process leaves its flow run to another one."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import State
from prefect.states import (
    AwaitingRetry,
    Cancelling,
    Completed,
    Crashed,
    Paused,
    Pending,
    Running,
    Scheduled,
    Suspended,
)

from flows.running.prefect_run import is_in_other_hands

pytestmark = pytest.mark.unit

BY_PAGE = Suspended(timeout_seconds=300)
"""as Prefect's page suspends: the run is to be started anew"""


@pytest.mark.parametrize(
    ("since", "leaves"),
    [
        ([], False),
        ([BY_PAGE], True),
        ([BY_PAGE, Scheduled(name="Resuming"), Pending(), Running()], True),
        ([Crashed(), AwaitingRetry(), Pending(), Running()], True),
        ([Crashed()], False),
        ([Cancelling()], False),
        ([Completed()], False),
        ([Paused(timeout_seconds=300)], False),
        ([Paused(timeout_seconds=300), Running()], False),
    ],
)
def test_it_leaves_when_another_process_has_run_it_or_is_to(
    since: list[State[None]], leaves: bool
) -> None:
    assert is_in_other_hands(since) is leaves
