"""A reward that runs in a process of its own, with a time limit: every one that is not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.types import Transcript, Verdict
from infra.processes.part_process import PartProcess, PartRaised
from rewards.verdicts import NoVerdict

BUILD = "rewards.registry:build"


class ProcessReward:
    """Asks the reward behind a `PartProcess`; one call a rollout."""

    def __init__(self, name: str, options: Mapping[str, Any], timeout_s: float) -> None:
        self.process = PartProcess(f"reward {name!r}", BUILD, (name, dict(options)), timeout_s)

    async def __call__(self, transcript: Transcript) -> Verdict:
        """Raises PartFailed, and NoVerdict for what is none."""
        try:
            return await self.process.call("__call__", transcript, about=transcript.problem.id)
        except PartRaised as error:
            if error.types[0] == f"{NoVerdict.__module__}.{NoVerdict.__qualname__}":
                raise NoVerdict(error.text) from None
            raise
