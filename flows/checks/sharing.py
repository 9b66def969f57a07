"""Stages whose trainer and servers share devices: combinations that cannot take turns."""

from __future__ import annotations

from collections.abc import Iterator

from flows.plan import PlannedStage


def sharing_problems(stage: PlannedStage) -> Iterator[str]:
    """Of a stage that both trains and generates; `share` says nothing to others."""
    resources, policy = stage.resources, stage.spec.policy
    if not resources.share or policy is None:
        return
    where = f"stage {stage.name}: `share: true` in its resources"
    if stage.spec.samples_beside_training:
        yield (
            f"{where} has trainer and servers take turns, and with max_staleness above 0 they work"
            " at the same time: set `max_staleness: 0`, or `share: false`"
        )
    if policy.fleet.external:
        yield (
            f"{where} puts servers to sleep, and fleet.external names servers that are not ours:"
            " leave it out, or set `share: false`"
        )
    if policy.fleet.sglang.get("enable_memory_saver") is False:
        yield (
            f"{where} needs fleet.sglang.enable_memory_saver on GPUs: leave it out, or set"
            " `share: false`"
        )
    if resources.weights.transport == "disk_delta":
        yield (
            f"{where} has servers forget their weights, and weights.transport `disk_delta` sends"
            " what changed: set it to `auto`, as both are on one host, or set `share: false`"
        )
    ranks = resources.trainer.world_size + (stage.critic.world_size if stage.critic else 0)
    needed = resources.servers * resources.tp_per_server
    if needed > ranks:
        yield (
            f"{where} puts its servers on the devices of its ranks, which are {ranks}; servers x"
            f" tp_per_server may be at most that and is {needed}: lower one of them, raise the"
            " trainer's layout, or set `share: false`"
        )
