"""Starting and killing the Ray actors behind a pool's ranks. Runs inside the pool's actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.megatron.ranks.rank import Rank, RankAddress

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


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One living rank: its Ray actor handle and where it runs."""

    actor: Any
    place: RankAddress


class RankProcesses:
    """Makes rank actors of one class, each with its own GPU where `gpus_per_rank` says so.

    A rank's bundle of the cluster stays reserved when its process is replaced, so that a stage
    cannot lose its devices to someone else between two processes.
    """

    def __init__(self, rank_class: type[Rank], gpus_per_rank: float) -> None:
        self._class = rank_class
        self._gpus = gpus_per_rank
        self._bundles: dict[str, Any] = {}

    async def start(self, name: str) -> RankProcess:
        """A warm rank; takes as long as its imports. Raises what its constructor raised."""
        import ray

        options: dict[str, Any] = {"num_cpus": 0}
        if self._gpus:
            options |= {
                "num_gpus": self._gpus,
                "scheduling_strategy": await self._bundle(name),
            }
        actor_class: Any = ray.remote(self._class)
        actor = actor_class.options(**options).remote(_GPU_ENV if self._gpus else _CPU_ENV)
        return RankProcess(actor, await actor.place.remote())

    def kill(self, process: RankProcess) -> None:
        """End a rank whatever it is doing; returns at once."""
        import ray

        ray.kill(process.actor, no_restart=True)

    async def _bundle(self, name: str) -> Any:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if name not in self._bundles:
            self._bundles[name] = placement_group([{"GPU": self._gpus}], strategy="PACK")
        group = self._bundles[name]
        await group.ready()
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
