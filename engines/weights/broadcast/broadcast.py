"""A push by broadcast: which way it takes, and the groups that it keeps.

Each pipeline stage's sender has a process group with all servers, in which it is rank 0. A group
holds until the servers change: another set of them, or one that holds other weights than the last
push left there, for it was restarted and knows nothing of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from engines.weights.broadcast.arriving_group import ArrivingGroup, let_weights_arrive
from engines.weights.broadcast.engine_group import EngineGroup
from engines.weights.buckets import Bucket, OwnMemory, TrainedWeights
from engines.weights.transport import PublishReport, Target
from engines.weights.update import Servers
from engines.weights.weight_stream import stream
from infra.errors import EngineError

_CPU_BUCKET_BYTES = 24 << 20
"""malloc gives memory of up to 32 MiB again; larger buckets would be mapped anew each time, which
takes longer than to send them"""


class Broadcast:
    """See `Transport`. From a CPU to servers of ours the weights arrive before servers pause."""

    name = "broadcast"

    def __init__(self) -> None:
        self._group: ArrivingGroup | EngineGroup | None = None
        self._arrives = False
        """whether this rank's group, if it sends, and all others are arriving ones"""
        self._joined: tuple[Target, ...] = ()
        """the servers of the group, with the version that the last push left there"""

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        device = weights.weights[0].local.device
        if device.type == "cpu":
            limit = min(weights.bucket_bytes, _CPU_BUCKET_BYTES)
            weights = replace(weights, bucket_bytes=limit)
        try:
            if not all(weights.ranks.gather(self._joined == tuple(targets))):
                self._join(weights, targets, device.type == "cpu")
            memory, load = OwnMemory(device), self._load if self._arrives else None
            report = stream(self.name, weights, targets, version, memory, self._send, load)
        except BaseException:
            self.close()  # some servers may wait in it for what does not come
            raise
        self._joined = tuple(replace(target, version=str(version)) for target in targets)
        return report

    def close(self) -> None:
        group, self._group, self._joined = self._group, None, ()
        if group is not None:
            group.close()

    def _join(self, weights: TrainedWeights, targets: Sequence[Target], on_cpu: bool) -> None:
        """One stage after the other: a server waits in one group at a time."""
        self.close()
        ranks = weights.ranks
        urls = [target.url for target in targets]
        self._arrives = on_cpu and ranks.from_leader(partial(let_weights_arrive, urls))
        if self._arrives:
            trainer = ranks.from_leader(lambda: f"tributary-{uuid4().hex}")
            make = partial(ArrivingGroup, targets, trainer, weights.bucket_sizes())
        else:
            make = partial(EngineGroup, targets, "gloo" if on_cpu else "nccl")
        for stage in range(ranks.num_stages):
            mine = ranks.is_sender and stage == ranks.stage
            group = ranks.settle(make if mine else None)
            self._group = group or self._group

    def _send(self, servers: Servers, bucket: Bucket) -> list[Future[Any]]:
        if self._group is None:
            raise EngineError("the broadcast has no group: a push joins one first")
        return self._group.send(servers, bucket)

    def _load(self, servers: Servers) -> None:
        if isinstance(self._group, ArrivingGroup):
            self._group.load(servers)
