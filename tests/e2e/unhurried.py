"""A reward that takes its time, as a judge elsewhere does: a stage that waits for it leaves the
machine to the flows that come and go beside it."""

from __future__ import annotations

import asyncio

from engines.types import Transcript, Verdict


class Unhurried:
    """Gives nothing, after a second."""

    async def __call__(self, transcript: Transcript) -> Verdict:
        await asyncio.sleep(1.0)
        return Verdict(0.0)
