"""Ranks of a lease that work as one model's trainer: what a policy's and a critic's group share.

Asyncio, no torch. Every call goes to all ranks at once and is bounded in time. After an error the
ranks' state is unknown: the lease refuses further calls, and its ranks are killed on release.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from engines.megatron.ranks.calls import answers
from engines.megatron.ranks.lease import POOL_S, RankLease
from engines.megatron.ranks.rank import TrainerJob
from engines.step_inputs import StepInputs
from infra.access import LOOPBACK
from infra.errors import EngineError, LeaseLost, TributaryError

START_S = 300.0
STEP_S = 1800.0
WEIGHTS_S = 600.0


class RankGroup:
    """The ranks `first` to `first + count` of a lease; ended by `release` or `async with`."""

    def __init__(self, lease: RankLease, first: int, count: int) -> None:
        self._lease = lease
        self._ranks = lease.grant.ranks[first : first + count]
        self._places = lease.grant.places[first : first + count]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def save(self, folder: Path, *, timeout_s: float = WEIGHTS_S) -> None:
        """Everything a resumed stage needs (weights, optimizer, schedule, random state)."""
        await self._call("save", folder, timeout_s=timeout_s)

    async def load(self, folder: Path, *, timeout_s: float = WEIGHTS_S) -> None:
        """The counterpart of `save`; the layout may differ."""
        await self._call("load", folder, timeout_s=timeout_s)

    async def export(self, folder: Path, source: Path, *, timeout_s: float = WEIGHTS_S) -> None:
        """Write a HF folder of the family of `source`, whose other files it takes over."""
        await self._call("export", folder, source, timeout_s=timeout_s)

    async def release(self) -> None:
        """End the lease, and so every group on it. Safe to call twice."""
        await self._lease.release()

    async def start(self, job: TrainerJob) -> None:
        """Have every rank join the group and build its share of the model."""
        ranks, places = self._ranks, self._places
        try:
            # Who reaches the rendezvous can disturb it: on one host nobody else has to.
            together = len({place.host for place in places}) == 1
            host = LOOPBACK if together else places[0].host
            meetings = [ranks[0].meeting.remote(host)]
            (rendezvous,) = await answers(meetings, POOL_S, "rank 0", places[:1])
            starts = [actor.start.remote(job, rank, rendezvous) for rank, actor in enumerate(ranks)]
            await answers(starts, START_S, "start", places)
        except TributaryError as error:
            self._lease.fault = error
            raise

    async def _step(self, method: str, inputs: StepInputs, *, timeout_s: float) -> Any:
        """Rank 0's answer to `method` of a step; its samples are serialized once, for all ranks and
        all calls of the step."""
        self._lease.check()
        samples = self._lease.shipped(inputs.samples)
        return await self._call(
            method, replace(inputs, samples=()), samples=samples, timeout_s=timeout_s
        )

    async def _call(
        self, method: str, *arguments: Any, timeout_s: float, samples: Any = None
    ) -> Any:
        """Rank 0's answer to `method`; the arguments are serialized once for all ranks."""
        lease = self._lease
        lease.check()
        import ray

        shared = ray.put(arguments) if len(self._ranks) > 1 else arguments
        try:
            calls = [actor.call.remote(method, shared, samples) for actor in self._ranks]
            return (await answers(calls, timeout_s, method, self._places))[0]
        except TributaryError as error:
            if isinstance(lease.fault, LeaseLost):  # why the ranks were killed under the call
                raise lease.fault from error
            lease.fault = error
            raise
        except asyncio.CancelledError:
            lease.fault = EngineError(f"{method} was cancelled while the ranks worked on it")
            raise
