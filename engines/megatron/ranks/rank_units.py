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
from engines.devices.ray_cluster import Host
from engines.devices.units import OwnerSettings, Request, rank_place
from engines.megatron.ranks.rank import RankUse, RunningRank, TrainerRank
from engines.megatron.ranks.rank_group import RankTerms
from infra.cuda import allocator_environment, nccl_environment
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
    """The ranks of the cluster; see `Units`."""

    def __init__(self, agent: HostAgent, settings: OwnerSettings) -> None:
        self._agent = agent
        self._class = settings.rank_class or TrainerRank
        self._ranks: dict[str, RunningRank | None] = {}
        self._hosts: dict[str, Host] = {}
        """of the running ones"""
        self.restarts = 0

    def grow(self, count: int) -> Sequence[str]:
        for index in range(len(self._ranks), count):
            self._ranks[f"rank-{index}"] = None
        return tuple(self._ranks)

    def running(self) -> Mapping[str, int]:
        return {name: rank.place.pid for name, rank in self._ranks.items() if rank is not None}

    def place(self, requests: Sequence[Request], taken: frozenset[int]) -> Sequence[Request]:
        """A rank's GPU follows from its number."""
        return requests

    def choose(self, free: Sequence[str], request: Request) -> Sequence[str]:
        tp = self._together(request.terms)
        groups = [group for group in _neighbours(free, tp) if len(group) == tp]
        warm_first = sorted(groups, key=lambda names: any(self._ranks[n] is None for n in names))
        chosen = [name for names in warm_first[: request.count // tp] for name in names]
        return sorted(chosen, key=_number)

    def gpus(self, name: str, request: Request) -> frozenset[int]:
        gpu = self._gpu(name, self._together(request.terms))
        return frozenset() if gpu is None else frozenset({gpu})

    def held_gpus(self, name: str) -> frozenset[int]:
        return frozenset()  # one that nobody uses has no model

    async def free_memory(self, name: str) -> None:
        pass

    async def warm(self, name: str) -> None:
        await self._warm(name, 1)

    async def _warm(self, name: str, tp: int) -> None:
        rank = self._ranks[name]
        if rank is not None and (self._is_astray(name, rank, tp) or not await _answers(rank)):
            self._end(name)
        if self._ranks[name] is None:
            self._ranks[name] = await self._started(name, tp)

    async def prepare(self, lease: Lease, terms: RankTerms | None) -> RankUse:
        tp = self._together(terms)
        await asyncio.gather(*(self._warm(name, tp) for name in lease.units))
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
        self._ranks[name] = await self._started(name, 1)

    async def repair(self, leases: Sequence[Lease], idle: Sequence[str]) -> Sequence[str]:
        ranks = [(name, rank) for name in idle if (rank := self._ranks[name]) is not None]
        dead = await asyncio.gather(*(_is_dead(rank) for _, rank in ranks))
        return [name for (name, _), is_dead in zip(ranks, dead, strict=True) if is_dead]

    async def use(self, lease: Lease) -> RankUse | None:
        ranks = [rank for name in lease.units if (rank := self._ranks[name]) is not None]
        return tuple(ranks) if len(ranks) == len(lease.units) else None

    def close(self) -> None:
        for name in self._ranks:
            self._end(name)

    def _together(self, terms: RankTerms | None) -> int:
        """Neighbours that have to be on one host; on a single one nothing has to be sought."""
        return terms.tp if terms is not None and len(self._agent.hosts.known) > 1 else 1

    def _place(self, name: str, tp: int) -> tuple[int, int | None]:
        """Host and GPU where the rank belongs, as hosts come and go."""
        return rank_place(_number(name), [host.num_gpus for host in self._agent.hosts.known], tp)

    def _is_astray(self, name: str, rank: RunningRank, tp: int) -> bool:
        """Return whether it runs elsewhere than it belongs: hosts came or went, or its neighbours
        are on another one."""
        host = self._agent.hosts.known[self._place(name, tp)[0]]
        return self._hosts[name] != host or rank.gpu != self._gpu(name, tp)

    async def _started(self, name: str, tp: int) -> RunningRank:
        """Return a new process for this rank; takes as long as its imports."""
        index, device = self._place(name, tp)
        host = self._hosts[name] = self._agent.hosts.known[index]
        environment = dict(_CPU_ENV)
        if device is not None:
            own = await asyncio.to_thread(self._agent.gpu_environment, device, host)
            environment = _GPU_ENV | nccl_environment() | allocator_environment() | own
        actor = self._agent.start_actor(self._class, environment, host)
        try:
            place = await asyncio.wait_for(actor.place.remote(), _START_S)
            return RunningRank(actor, place, None if device is None else host.first_gpu + device)
        except TimeoutError:
            reason = f"no process within {_START_S:.0f} s; see `ray status` for what it waits for"
        except Exception as error:  # whatever an import in the rank raised
            # Ray's text for a failed constructor is a traceback that ends with the reason.
            last_line = str(error).strip().rpartition("\n")[2]
            reason = f"{type(error).__name__}: {last_line}"
        self._agent.end_actor(actor)
        raise EngineError(f"trainer rank processes do not start: {reason}")

    def _gpu(self, name: str, tp: int) -> int | None:
        """Number in the cluster of the GPU that the rank would have."""
        index, device = self._place(name, tp)
        return None if device is None else self._agent.hosts.known[index].first_gpu + device

    def _end(self, name: str) -> None:
        rank, self._ranks[name] = self._ranks[name], None
        if rank is not None:
            self._agent.end_actor(rank.actor)


def _number(name: str) -> int:
    return int(name.removeprefix("rank-"))


def _neighbours(names: Sequence[str], tp: int) -> list[list[str]]:
    """By tens, where `tp` is ten: those that form a tensor-parallel group if all are there."""
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(_number(name) // tp, []).append(name)
    return list(groups.values())


async def _answers(rank: RunningRank) -> bool:
    with suppress(Exception):  # any failure to answer means the same
        await asyncio.wait_for(rank.actor.place.remote(), _ALIVE_S)
        return True
    return False


async def _is_dead(rank: RunningRank) -> bool:
    """Return whether Ray knows that it died; one that was leased just now answers late."""
    from ray.exceptions import ActorDiedError

    try:
        await asyncio.wait_for(rank.actor.place.remote(), _ALIVE_S)
    except ActorDiedError:
        return True
    except Exception:
        return False
    return False
