"""Ranks of a lease that work as one model's trainer: what a policy's and a critic's group share.

Asyncio, no torch. Every call goes to all ranks at once and is bounded in time. After an error the
ranks' state is unknown: the lease refuses further calls, and its ranks are killed on release.

A stage that needs several groups takes the ranks of all of them in one lease: with a lease for
each, two stages could hold one and wait for the other's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from engines.devices.lease import CALL_S, StageLease
from engines.devices.units import FOLDERS, Folders, Held, Request, TrainerPart
from engines.devices.waiting_time import WorkRate, answers, folder_bytes, transfer_bound_s
from engines.megatron.ranks.rank import RankUse, TrainerJob
from engines.types import Sample
from engines.weights.spec import WeightTransport
from infra.access import LOOPBACK
from infra.errors import EngineError, LeaseLost, TributaryError
from infra.hooks import resolve

if TYPE_CHECKING:
    from engines.step_inputs import StepInputs


START_S = 300.0
STATE_S = 600.0
"""what saving, loading or publishing a model of no size may take; larger ones get time for their
bytes"""
_STEP_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
"""between two questions whether ranks have written"""
_SLOWEST_TOKENS_PER_S = 5.0
_START_S = 600.0
"""what ranks may take to be warm: they are replaced once, each within its own bound"""


class RankGroup:
    """The ranks `first` to `first + count` of a lease; ended by `release` or `async with`."""

    def __init__(self, lease: RankLease, first: int, count: int) -> None:
        use: RankUse = lease.use[first : first + count]
        self._lease = lease
        self._state_s = STATE_S
        self._weights = WeightTransport()
        self._rates: dict[str, WorkRate] = {}
        """tokens a second, by method"""
        self._ranks = [rank.actor for rank in use]
        self._places = [rank.place for rank in use]
        self._folders: Folders = resolve("folders of ranks", FOLDERS, {})(self.hosts)
        self._saving = Path()
        """the checkpoint that the ranks write"""
        self.gpus = [rank.gpu for rank in use if rank.gpu is not None]
        """their numbers in the cluster, one a rank; none on a CPU"""
        self._one_call = asyncio.Lock()
        """a rank does one thing at a time: a call is bounded from when the one before it is over"""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    @property
    def hosts(self) -> list[str]:
        """Address of the host of each rank."""
        return [place.host for place in self._places]

    async def save(self, folder: Path, *, timeout_s: float | None = None) -> None:
        """Everything a resumed stage needs (weights, optimizer, schedule, random state)."""
        await self.begin_save(folder, timeout_s=timeout_s)
        await self.saved(timeout_s=timeout_s)

    async def begin_save(self, folder: Path, *, timeout_s: float | None = None) -> None:
        """Save a checkpoint, and return when the ranks have a copy of it: they may train on while
        they write that."""
        timeout_s = timeout_s or self._state_s
        self._saving = folder
        sent = await self._folders.to_write(folder, timeout_s)
        await self._call("begin_save", sent, timeout_s=timeout_s)

    async def saved(self, *, timeout_s: float | None = None) -> None:
        """Returns when the checkpoint is complete. The ranks are asked between other calls."""
        bound = timeout_s or self._state_s
        deadline, pause = time.monotonic() + bound, _FIRST_PAUSE_S
        while not await self._call("finish_save", timeout_s=bound):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the ranks have not written their checkpoint in {bound:.0f} s: is the disk of"
                    " their scratch folder full or slow?"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        await self._folders.collect(self._saving, bound)

    async def load(self, folder: Path, *, timeout_s: float | None = None) -> None:
        """The counterpart of `save`; the layout may differ."""
        timeout_s = timeout_s or self._state_s
        async with self._folders.to_read(folder, timeout_s) as sent:
            await self._call("load", sent, timeout_s=timeout_s)

    async def export(self, folder: Path, source: Path) -> None:
        """Write a HF folder of the family of `source`, whose other files it takes over."""
        sent = await self._folders.to_write(folder, self._state_s)
        await self._call("export", sent, self._folders.copy(source), timeout_s=self._state_s)
        await self._folders.collect(folder, self._state_s)

    async def hold(self, parts: Collection[TrainerPart]) -> Held:
        """Have these parts on the ranks' devices, and no others, with the same bits as before;
        returns what rank 0 gave back and still has. A call that needs another part is refused."""
        return await self._call("hold", parts, timeout_s=self._state_s)

    async def release(self) -> None:
        """End the lease, and so every group on it. Safe to call twice."""
        await self._lease.release()

    async def start(self, job: TrainerJob) -> None:
        """Have every rank join the group and build its share of the model."""
        ranks, places, self._weights = self._ranks, self._places, job.weights
        size = folder_bytes(job.model)
        job = replace(job, copy=self._folders.copy(job.model))
        # Weights, moments and master weights, as a checkpoint has them.
        self._state_s = transfer_bound_s(9 * size, STATE_S)
        try:
            # Who reaches the rendezvous can disturb it: on one host nobody else has to.
            together = len({place.host for place in places}) == 1
            host = LOOPBACK if together else places[0].host
            meetings = [ranks[0].meeting.remote(host)]
            (rendezvous,) = await answers(meetings, CALL_S, "rank 0", places[:1])
            starts = [actor.start.remote(job, rank, rendezvous) for rank, actor in enumerate(ranks)]
            await answers(starts, transfer_bound_s(size, START_S), "start", places)
        except TributaryError as error:
            self._lease.fault = error
            raise

    async def _step(self, method: str, inputs: StepInputs) -> Any:
        """Rank 0's answer to `method` of a step; its samples are serialized once, for all ranks and
        all calls of the step."""
        self._lease.check()
        samples = self._lease.shipped(inputs.samples)
        tokens = sum(len(sample.tokens) for sample in inputs.samples)
        return await self._work(method, tokens, replace(inputs, samples=()), samples=samples)

    async def _work(self, method: str, tokens: int, *arguments: Any, samples: Any = None) -> Any:
        """Make a call that goes over so many tokens, which is what bounds it."""
        rate = self._rates.setdefault(
            method, WorkRate(floor_s=_STEP_S, assumed_per_s=_SLOWEST_TOKENS_PER_S)
        )
        began = time.monotonic()
        answer = await self._call(
            method, *arguments, samples=samples, timeout_s=rate.bound_s(tokens)
        )
        rate.took(tokens, time.monotonic() - began)
        return answer

    async def _call(
        self, method: str, *arguments: Any, timeout_s: float, samples: Any = None
    ) -> Any:
        """Rank 0's answer to `method`; the arguments are serialized once for all ranks."""
        async with self._one_call:
            return await self._answer(method, *arguments, timeout_s=timeout_s, samples=samples)

    async def _answer(self, method: str, *arguments: Any, timeout_s: float, samples: Any) -> Any:
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


@dataclass(frozen=True, slots=True)
class RankTerms:
    """What a lease's ranks have to be."""

    tp: int = 1
    """so many neighbours, counted from the first, are on one host"""


class RankLease(StageLease):
    """A lease on ranks. After a fault they are killed on release."""

    _shipped: tuple[Sequence[Sample], Any] = ((), None)

    @classmethod
    async def take_ranks(
        cls,
        count: int,
        pool_ranks: int,
        holder: str,
        *,
        tp: int,
        what: str,
        wait_s: float,
        owner: Any,
        is_sole: bool = False,
    ) -> RankLease:
        """Wait for `count` ranks, of which `tp` neighbours at a time are on one host; raises as
        `take` does."""
        terms = RankTerms(tp)
        request = Request("rank", count, pool_ranks, holder, terms, wait_s, is_sole=is_sole)
        return await cls.take(request, what=what, prepare_s=_START_S, owner=owner)

    def shipped(self, samples: Sequence[Sample]) -> Any:
        """Return a reference to a step's samples in Ray's store: put there once, freed by the
        next."""
        if self._shipped[0] is not samples or self._shipped[1] is None:
            import ray

            self._shipped = (samples, ray.put(samples))
        return self._shipped[1]
