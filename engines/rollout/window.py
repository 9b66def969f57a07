"""Window: how many rollouts of a sweep over many problems are under way at once.

problems ──▶ take(samples) ──▶ rolled out ──▶ give_back ──▶ the next problem begins
"""

from __future__ import annotations

import asyncio

from engines.sglang.spec import MOST_RUNNING

_ROLLOUTS_A_TURN = 2
"""while one has a turn at the servers, another may be at its tools or its judge"""


class Window:
    """Sweeps at the same servers share one. Whoever asks first has its places first."""

    def __init__(self, most_turns: int = MOST_RUNNING) -> None:
        """`most_turns`: at the servers at once. A problem with more samples than there are places
        has all of them."""
        self._most = most = _ROLLOUTS_A_TURN * most_turns
        self._free = asyncio.Semaphore(most)
        self._next = asyncio.Lock()
        """held by the problem that gets places: two that have some each would wait for ever"""

    async def take(self, rollouts: int) -> int:
        """Wait for places. -> how many there are to give back."""
        places = min(rollouts, self._most)
        async with self._next:
            for _ in range(places):
                await self._free.acquire()
        return places

    def give_back(self, places: int) -> None:
        for _ in range(places):
            self._free.release()
