"""Trainer ranks as the owner of devices leases them: warm processes that outlive stages.

A released rank forgets its model and waits for the next lease; one that was lost with its holder,
or that died, is replaced by a new process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from engines.devices.host_agent import HostAgent
from engines.devices.lease import Lease
from engines.devices.placement import rank_device
from engines.devices.units import OwnerSettings, Request
from engines.megatron.ranks.rank import RankUse, RunningRank, TrainerRank
from infra.errors import EngineError

_START_S = 180.0
_RESET_S = 30.0
_ALIVE_S = 10.0
_CPU_ENV = {
    # Two spinning OpenMP pools on few cores slow each other many times over.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}
_GPU_ENV = {
    # Megatron's tensor and sequence parallel overlap relies on one hardware queue.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class RankUnits:
    """The ranks of a host; see `Units`."""

    def __init__(self, agent: HostAgent, settings: OwnerSettings) -> None:
        self._agent = agent
        self._class = settings.rank_class or TrainerRank
        self._ranks: dict[str, RunningRank | None] = {}
        self.restarts = 0

    def grow(self, count: int) -> Sequence[str]:
        for index in range(len(self._ranks), count):
            self._ranks[f"rank-{index}"] = None
        return tuple(self._ranks)

    def running(self) -> Mapping[str, int]:
        return {name: rank.place.pid for name, rank in self._ranks.items() if rank is not None}

    def choose(self, free: Sequence[str], request: Request) -> Sequence[str]:
        warm_first = sorted(free, key=lambda name: self._ranks[name] is None)
        return sorted(warm_first[: request.count], key=free.index)

    def gpus(self, name: str, request: Request) -> frozenset[int]:
        gpu = self._gpu(name)
        return frozenset() if gpu is None else frozenset({gpu})

    def held_gpus(self, name: str) -> frozenset[int]:
        return frozenset()  # one that nobody uses has no model

    async def free_memory(self, name: str) -> None:
        pass

    async def warm(self, name: str) -> None:
        rank = self._ranks[name]
        if rank is not None and not await _answers(rank):
            self._end(name)
        if self._ranks[name] is None:
            self._ranks[name] = await self._started(name)

    async def prepare(self, lease: Lease, terms: None) -> RankUse:
        await asyncio.gather(*(self.warm(name) for name in lease.units))
        ranks = (self._ranks[name] for name in lease.units)
        return tuple(rank for rank in ranks if rank is not None)

    def end_lease(self, lease: Lease) -> None:
        pass

    async def give_back(self, name: str, is_clean: bool) -> None:
        rank = self._ranks[name]
        if is_clean and rank is not None:
            with suppress(Exception):  # dead, hung or half torn down: a new process is safe
                await asyncio.wait_for(rank.actor.stop.remote(), _RESET_S)
                return
        self._end(name)
        self._ranks[name] = await self._started(name)

    async def repair(self, leases: Sequence[Lease], idle: Sequence[str]) -> Sequence[str]:
        ranks = [(name, rank) for name in idle if (rank := self._ranks[name]) is not None]
        dead = await asyncio.gather(*(_is_dead(rank) for _, rank in ranks))
        return [name for (name, _), is_dead in zip(ranks, dead, strict=True) if is_dead]

    async def is_healthy(self, lease: Lease) -> bool:
        return all(self._ranks[name] is not None for name in lease.units)

    def close(self) -> None:
        for name in self._ranks:
            self._end(name)

    async def _started(self, name: str) -> RunningRank:
        """A new process for this rank; takes as long as its imports."""
        device = self._gpu(name)
        environment = dict(_CPU_ENV)
        if device is not None:
            environment = _GPU_ENV | {"CUDA_VISIBLE_DEVICES": self._agent.visible_gpu(device)}
        actor = self._agent.start_actor(self._class, environment)
        try:
            place = await asyncio.wait_for(actor.place.remote(), _START_S)
            return RunningRank(actor, place, device)
        except TimeoutError:
            reason = f"no process within {_START_S:.0f} s; see `ray status` for what it waits for"
        except Exception as error:  # whatever an import in the rank raised
            # Ray's text for a failed constructor is a traceback that ends with the reason.
            last_line = str(error).strip().rpartition("\n")[2]
            reason = f"{type(error).__name__}: {last_line}"
        self._agent.end_actor(actor)
        raise EngineError(f"trainer rank processes do not start: {reason}")

    def _gpu(self, name: str) -> int | None:
        return rank_device(int(name.removeprefix("rank-")), self._agent.num_gpus)

    def _end(self, name: str) -> None:
        rank, self._ranks[name] = self._ranks[name], None
        if rank is not None:
            self._agent.end_actor(rank.actor)


async def _answers(rank: RunningRank) -> bool:
    with suppress(Exception):  # any failure to answer means the same
        await asyncio.wait_for(rank.actor.place.remote(), _ALIVE_S)
        return True
    return False


async def _is_dead(rank: RunningRank) -> bool:
    """Whether Ray knows that it died; one that was leased just now answers late."""
    from ray.exceptions import ActorDiedError

    try:
        await asyncio.wait_for(rank.actor.place.remote(), _ALIVE_S)
    except ActorDiedError:
        return True
    except Exception:
        return False
    return False
