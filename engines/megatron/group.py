"""The driver's side of training: ranks leased from the pool that work as one trainer.

    async with await TrainerGroup.lease(...) as trainer:
        metrics = await trainer.rl_step(samples, algorithm, gate=True)
        report = await trainer.publish(server_urls, version)

Asyncio, no torch. Every call goes to all ranks at once and is bounded in time. After an error the
ranks' state is unknown: the group refuses further calls, and its ranks are killed on release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engines.algorithms.spec import Algorithm
from engines.keeper import grant_of, keep_renewing
from engines.megatron.pool import LEASE_TTL_S, Grant
from engines.megatron.pools import open_pool
from engines.megatron.rank import TrainerJob
from engines.megatron.rank_calls import answers
from engines.megatron.spec import Optimizer, Parallel
from engines.megatron.spec import Trainer as TrainerSpec
from engines.raylink import driver_id
from engines.types import Sample
from infra.errors import EngineError, InputError, LeaseLost, TributaryError

if TYPE_CHECKING:
    from engines.batching import TokenSequence
    from engines.weight_sync.report import PublishReport

_START_S = 300.0
_STEP_S = 1800.0
_WEIGHTS_S = 600.0
_POOL_S = 30.0


async def prewarm(ranks: int, pool: Any = None) -> None:
    """Start `ranks` trainer processes in the background, so that the next lease finds them warm."""
    pool = pool or await asyncio.to_thread(open_pool)
    await answers([pool.prewarm.remote(ranks)], _POOL_S, "trainer pool", ())


class TrainerGroup:
    """A leased group of ranks; made by `lease`, ended by `release` or `async with`."""

    def __init__(self, pool: Any, grant: Grant) -> None:
        self._pool = pool
        self._grant = grant
        self._fault: TributaryError | None = None
        self._released = False
        self._renewal = asyncio.create_task(self._renew())

    @classmethod
    async def lease(
        cls,
        parallel: Parallel,
        pool_ranks: int,
        holder: str,
        spec: TrainerSpec,
        optimizer: Optimizer,
        model: Path,
        seed: int,
        total_steps: int,
        *,
        hooks: Mapping[str, str] | None = None,
        wait_s: float = 3600.0,
        pool: Any = None,
    ) -> TrainerGroup:
        """Wait for `parallel.world_size` ranks, first come first served, and start a Trainer.

        `hooks` are the user's own files, by relative path, that the ranks must be able to import.
        Raises InputError if the pool can never have that many ranks or the model cannot be used,
        EngineError if none came free within `wait_s` or a rank failed.
        """
        if parallel.world_size > pool_ranks:
            raise InputError(
                f"the trainer needs {parallel.world_size} ranks (tp x pp x cp x dp) but the pool"
                f" has {pool_ranks}: raise resources.trainer_ranks or choose a smaller layout"
            )
        pool = pool or await asyncio.to_thread(open_pool)
        request = pool.lease.remote(parallel.world_size, pool_ranks, holder, driver_id(), wait_s)
        (grant,) = await grant_of(
            request, lambda call: answers([call], wait_s + _POOL_S, "trainer pool", ())
        )
        group = cls(pool, grant)
        try:
            job = TrainerJob(spec, optimizer, parallel, model, seed, total_steps, hooks or {})
            await group._start(job)
        except BaseException:
            await group.release()
            raise
        return group

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.release()

    async def sft_steps(
        self, batches: Sequence[Sequence[TokenSequence]], *, timeout_s: float = _STEP_S
    ) -> list[dict[str, float]]:
        """One optimizer step a batch; metrics of each."""
        return await self._call("sft_steps", batches, timeout_s=timeout_s)

    async def rl_step(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        gate: bool,
        version: int | None = None,
        *,
        timeout_s: float = _STEP_S,
    ) -> dict[str, float]:
        """Train on one batch of rollouts (`algorithm.mini_batches` optimizer steps).

        `version` is the policy's; None: the newest sample's. Raises AgreementError beyond the
        gate and TrainingStopped on NaN.
        """
        return await self._call("rl_step", samples, algorithm, gate, version, timeout_s=timeout_s)

    async def load_teachers(
        self, folders: Mapping[str, Path], *, timeout_s: float = _WEIGHTS_S
    ) -> None:
        """Hold a frozen model for each domain (HF folders), for on-policy distillation.

        Raises InputError for one of another architecture.
        """
        await self._call("load_teachers", folders, timeout_s=timeout_s)

    async def logprobs(
        self,
        sequences: Sequence[Sequence[int]],
        temperature: float = 1.0,
        *,
        timeout_s: float = _STEP_S,
    ) -> list[list[float]]:
        """Log-probability of each token given those before it; the first of a sequence is 0."""
        return await self._call("logprobs", sequences, temperature, timeout_s=timeout_s)

    async def publish(
        self, endpoints: Sequence[str], version: int, *, timeout_s: float = _WEIGHTS_S
    ) -> PublishReport:
        """Put the present weights on every server and label them `version`."""
        return await self._call("publish", endpoints, version, timeout_s=timeout_s)

    async def save(self, folder: Path, *, timeout_s: float = _WEIGHTS_S) -> None:
        """Everything a resumed stage needs (weights, optimizer, schedule, random state)."""
        await self._call("save", folder, timeout_s=timeout_s)

    async def load(self, folder: Path, *, timeout_s: float = _WEIGHTS_S) -> None:
        """The counterpart of `save`; the layout may differ."""
        await self._call("load", folder, timeout_s=timeout_s)

    async def export(self, folder: Path, source: Path, *, timeout_s: float = _WEIGHTS_S) -> None:
        """Write a HF folder; tokenizer, template and configuration are copied from `source`."""
        await self._call("export", folder, source, timeout_s=timeout_s)

    async def release(self) -> None:
        """Give the ranks back; they are killed if a call failed. Safe to call twice."""
        if self._released:
            return
        self._released = True
        self._renewal.cancel()
        with suppress(asyncio.CancelledError):
            await self._renewal
        done = self._pool.release.remote(
            self._grant.lease_id, self._grant.token, self._fault is None
        )
        # A lease that was lost, or whose pool died, is over already.
        with suppress(EngineError):
            await answers([done], _POOL_S, "trainer pool", ())

    async def _start(self, job: TrainerJob) -> None:
        ranks, places = self._grant.ranks, self._grant.places
        try:
            (port,) = await answers([ranks[0].free_port.remote()], _POOL_S, "rank 0", places[:1])
            rendezvous = f"tcp://{places[0].host}:{port}"
            starts = [actor.start.remote(job, rank, rendezvous) for rank, actor in enumerate(ranks)]
            await answers(starts, _START_S, "start", places)
        except TributaryError as error:
            self._fault = error
            raise

    async def _call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Rank 0's answer to `method`; the arguments are serialized once for all ranks."""
        self._check()
        import ray

        ranks = self._grant.ranks
        shared = ray.put(arguments) if len(ranks) > 1 else arguments
        try:
            calls = [actor.call.remote(method, shared) for actor in ranks]
            return (await answers(calls, timeout_s, method, self._grant.places))[0]
        except TributaryError as error:
            if isinstance(self._fault, LeaseLost):  # why the ranks were killed under the call
                raise self._fault from error
            self._fault = error
            raise
        except asyncio.CancelledError:
            self._fault = EngineError(f"{method} was cancelled while the ranks worked on it")
            raise

    def _check(self) -> None:
        if self._released:
            raise LeaseLost("this trainer group was released; lease again")
        if self._fault is not None:
            raise EngineError(
                f"this trainer group broke before and must be released: {self._fault}"
            ) from self._fault

    async def _renew(self) -> None:
        """Keep the lease until release; a lost lease ends the group."""
        grant, every_s = self._grant, LEASE_TTL_S / 4

        async def renew() -> None:
            request = self._pool.renew.remote(grant.lease_id, grant.token)
            await answers([request], every_s, "trainer pool", ())

        def lost(error: LeaseLost) -> None:
            self._fault = error

        await keep_renewing(renew, every_s, lost)
