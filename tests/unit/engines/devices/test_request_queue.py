"""Who waits for units: first come first served, nobody forgotten, nobody stuck."""

from __future__ import annotations

import asyncio

import pytest

from engines.devices.lease import keep_renewing
from engines.devices.owner import RequestQueue
from infra.errors import EngineError, LeaseLost

pytestmark = pytest.mark.unit


async def test_the_first_request_is_served_first_though_a_later_one_could_be() -> None:
    queue, free, served = RequestQueue(), [0], list[str]()

    async def request(name: str, units: int) -> None:
        def attempt() -> bool | None:
            if free[0] < units:
                return None
            free[0] -= units
            served.append(name)
            return True

        await queue.serve(attempt, wait_s=5)

    first = asyncio.create_task(request("first", 2))
    await asyncio.sleep(0)
    second = asyncio.create_task(request("second", 1))
    free[0] = 1
    queue.notify_change()
    await asyncio.sleep(0.01)
    assert (served, len(queue)) == ([], 2)
    free[0] = 3
    queue.notify_change()
    await asyncio.gather(first, second)
    assert (served, len(queue)) == (["first", "second"], 0)


async def test_a_change_during_an_attempt_is_not_missed() -> None:
    queue, attempts = RequestQueue(), list[int]()

    def attempt() -> bool | None:
        attempts.append(1)
        if len(attempts) == 2:
            return True
        queue.notify_change()  # what it looked for came free while it looked
        return None

    assert await queue.serve(attempt, wait_s=5)


async def test_a_request_that_gives_up_lets_the_next_one_go_on() -> None:
    queue = RequestQueue()
    first = asyncio.create_task(queue.serve(lambda: None, wait_s=0.05))
    await asyncio.sleep(0)
    second = asyncio.create_task(queue.serve(lambda: True, wait_s=5))
    with pytest.raises(TimeoutError):
        await first
    assert await second


async def test_renewing_outlasts_a_busy_owner_and_ends_with_the_lease() -> None:
    answers: list[Exception | None] = [None, EngineError("busy"), None, LeaseLost("reclaimed")]

    async def renew() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    lost = await asyncio.wait_for(keep_renewing(renew, 0.001), 5)
    assert str(lost) == "reclaimed"
    assert answers == []
