"""The trainer pool: warm rank processes that outlive stages and are leased by them.

    open_pool -> pool.lease(n) -> Grant(rank actors) -> the stage's TrainerGroup uses them
              -> pool.release -> ranks reset -> ready for the next stage

One detached Ray actor keeps the pool. It is asyncio in one thread, so between two awaits nothing
else changes its books. A rank is *ready*, *leased*, or neither (starting or resetting). Requests
are served in order of arrival; the first one waits for enough ready ranks and all others wait for
it. A lease ends by release, by expiry (its holder stopped renewing) or with its driver process;
in the last two cases nobody knows what the ranks were doing, so they are killed and replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engines.keeper import Waiting, ended_leases, holders
from engines.lease import Lease, LeaseBook
from engines.megatron.ranks.process import RankProcess, RankProcesses
from engines.megatron.ranks.rank import Rank, RankAddress
from infra.errors import EngineError

LEASE_TTL_S = 60.0
_WATCH_S = 2.0
_START_S = 180.0
_RESET_S = 30.0
_ALIVE_S = 10.0


@dataclass(frozen=True, slots=True)
class RankGrant:
    """A lease on ranks as its holder sees it; `ranks[i]` serves as global rank i."""

    lease_id: str
    token: int
    ranks: tuple[Any, ...]
    """Ray actor handles"""
    places: tuple[RankAddress, ...]


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A snapshot for people and tests. Example: PoolStatus(2, 1, (("stage-rl-ab12", 1),), 0)"""

    size: int
    ready: int
    leases: tuple[tuple[str, int], ...]
    """holder and number of ranks, oldest first"""
    waiting: int


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for one rank process; `process` is None while one is being started."""

    name: str
    process: RankProcess | None = None
    ready: bool = False
    error: str = ""
    """why the last start failed; such a slot is started again by the next lease request"""


class TrainerPool:
    """The keeper; see the module. Every public method is called through Ray."""

    def __init__(self, rank_class: type[Rank], gpus_per_rank: float) -> None:
        self._processes = RankProcesses(rank_class, gpus_per_rank)
        self._slots: dict[str, _Slot] = {}
        self._book = LeaseBook()
        self._drivers: dict[str, str] = {}
        self._waiting = Waiting()
        self._jobs: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def prewarm(self, ranks: int) -> None:
        """Have at least `ranks` rank processes; starts what is missing and does not wait."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._watch_leases())
        for number in range(len(self._slots), ranks):
            slot = self._slots[f"rank-{number}"] = _Slot(f"rank-{number}")
            self._spawn(self._start(slot))

    async def lease(
        self, world_size: int, pool_ranks: int, holder: str, driver: str, wait_s: float
    ) -> RankGrant:
        """Ranks for `holder`, whose process is that of Ray job `driver`.

        Raises EngineError if none came free within `wait_s` or rank processes do not start.
        """
        await self.prewarm(max(world_size, pool_ranks))
        for slot in self._slots.values():
            if slot.error:
                slot.error = ""
                self._spawn(self._start(slot))
        try:
            return await self._waiting.serve(
                lambda: self._grant(world_size, holder, driver), wait_s
            )
        except TimeoutError:
            raise EngineError(
                f"{world_size} of {len(self._slots)} trainer ranks did not come free within"
                f" {wait_s:.0f} s; held by {holders(self._book)}. Wait for them, or raise"
                " resources.trainer_ranks"
            ) from None

    async def ping(self) -> None:
        """Answered by a keeper that does not hang."""

    async def renew(self, lease_id: str, token: int) -> None:
        self._book.renew(lease_id, token, LEASE_TTL_S, time.monotonic())

    async def release(self, lease_id: str, token: int, clean: bool) -> None:
        """End a lease. `clean` ranks are reset and reused, others are killed and replaced."""
        lease = self._book.release(lease_id, token)
        self._reclaim(lease, clean)

    async def status(self) -> PoolStatus:
        leases = tuple((lease.holder, len(lease.units)) for lease in self._book.leases)
        ready = sum(slot.ready for slot in self._slots.values())
        return PoolStatus(len(self._slots), ready, leases, len(self._waiting))

    async def retire(self) -> bool:
        """End the pool and its ranks if it is not in use; False if it is."""
        import ray.actor

        idle = not self._book.leases and not self._waiting
        if idle:
            ray.actor.exit_actor()  # its ranks are owned by it and end with it
        return idle

    async def _grant(self, world_size: int, holder: str, driver: str) -> RankGrant | None:
        """A grant if enough ranks are ready, proven alive just now."""
        failed = [slot.error for slot in self._slots.values() if slot.error]
        if failed:
            raise EngineError(f"trainer rank processes do not start: {failed[0]}")
        chosen = [slot for slot in self._slots.values() if slot.ready][:world_size]
        if len(chosen) < world_size:
            return None
        alive = await asyncio.gather(*(self._is_alive(slot) for slot in chosen))
        if not all(alive):
            for slot in (s for s, lives in zip(chosen, alive, strict=True) if not lives):
                self._replace(slot)
            return None
        processes = [slot.process for slot in chosen if slot.process is not None]
        lease = self._book.grant(
            [slot.name for slot in chosen], holder, LEASE_TTL_S, time.monotonic()
        )
        if lease is None:
            raise EngineError("internal error: a rank is both ready and leased; report this")
        for slot in chosen:
            slot.ready = False
        self._drivers[lease.id] = driver
        actors = tuple(process.actor for process in processes)
        return RankGrant(lease.id, lease.token, actors, tuple(p.place for p in processes))

    def _reclaim(self, lease: Lease, clean: bool) -> None:
        self._drivers.pop(lease.id, None)
        for name in lease.units:
            slot = self._slots[name]
            if clean:
                self._spawn(self._reset(slot))
            else:
                self._replace(slot)

    async def _watch_leases(self) -> None:
        """Reclaim what expired or whose driver is gone, and replace ready ranks that died, for as
        long as the pool lives."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for lease in await ended_leases(self._book, self._drivers):
                self._reclaim(lease, clean=False)
            for slot in [slot for slot in self._slots.values() if slot.ready]:
                process = slot.process
                if process is None or not await self._is_dead(process):
                    continue
                if slot.ready and slot.process is process:  # nobody leased it meanwhile
                    self._replace(slot)

    async def _start(self, slot: _Slot) -> None:
        try:
            slot.process = await asyncio.wait_for(self._processes.start(slot.name), _START_S)
            slot.ready = True
        except TimeoutError:
            slot.error = (
                f"no process within {_START_S:.0f} s; see `ray status` for what it waits for"
                " (a GPU that others hold?)"
            )
        except Exception as error:  # whatever an import in the rank raised: told to who asks next
            # Ray's text for a failed constructor is a traceback that ends with the reason.
            last_line = str(error).strip().rpartition("\n")[2]
            slot.error = f"{type(error).__name__}: {last_line}"
        self._waiting.changed()

    async def _reset(self, slot: _Slot) -> None:
        process = slot.process
        if process is None:
            return
        try:
            await asyncio.wait_for(process.actor.stop.remote(), _RESET_S)
        except Exception:  # dead, hung or half torn down: a fresh process is the safe state
            self._replace(slot)
        else:
            slot.ready = True
            self._waiting.changed()

    async def _is_alive(self, slot: _Slot) -> bool:
        with suppress(Exception):  # any failure to answer means the same
            if slot.process is not None:
                await asyncio.wait_for(slot.process.actor.place.remote(), _ALIVE_S)
                return True
        return False

    async def _is_dead(self, process: RankProcess) -> bool:
        """Whether Ray knows that it died; one that was leased just now answers late."""
        from ray.exceptions import ActorDiedError

        try:
            await asyncio.wait_for(process.actor.place.remote(), _ALIVE_S)
        except ActorDiedError:
            return True
        except Exception:
            return False
        return False

    def _replace(self, slot: _Slot) -> None:
        slot.ready = False
        if slot.process is not None:
            self._processes.kill(slot.process)
            slot.process = None
        self._spawn(self._start(slot))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._jobs.add(task)  # asyncio holds tasks weakly
        task.add_done_callback(self._jobs.discard)
