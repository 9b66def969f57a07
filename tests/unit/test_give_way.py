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

from flows.give_way import is_in_other_hands

pytestmark = pytest.mark.unit

BY_PAGE = Suspended(timeout_seconds=300)
"""as Prefect's page suspends: the run is to be started anew"""


@pytest.mark.parametrize(
    ("later", "leaves"),
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
    later: list[State[None]], leaves: bool
) -> None:
    before = [Scheduled(), Pending()]
    assert is_in_other_hands([*before, Running(), *later]) is leaves
