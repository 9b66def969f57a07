"""Weights through shared memory, for trainer and servers on one host.

A push copies weights into memory that both map, and sends the servers a few kilobytes that say
where each tensor lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.http import order
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import TAKE_S, Bucket, TrainedWeights
from engines.weights.recheck import checked_stream
from engines.weights.report import PublishReport
from engines.weights.shared_tensors import FLAT, allocate, flat_handles
from engines.weights.transport import Target
from engines.weights.update import Servers

if TYPE_CHECKING:
    from torch import Tensor


class SharedMemory:
    """See `Transport`. Keeps its memory between pushes: to map it anew costs more than to copy."""

    name = "shared memory"

    def __init__(self) -> None:
        self._slots: dict[int, Tensor] = {}

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        ranks_of = {target.url: target.num_ranks for target in targets}

        def send(servers: Servers, bucket: Bucket) -> list[Future[Any]]:
            told = {url: flat_handles(bucket, count) for url, count in ranks_of.items()}
            return servers.start(lambda url: tell(url, told[url], bucket.flat.nbytes))

        memory = self._memory
        return checked_stream(self.name, weights, targets, version, memory, send, allocate)

    def close(self) -> None:
        self._slots.clear()

    def _memory(self, slot: int, num_bytes: int) -> Tensor:
        if slot not in self._slots or self._slots[slot].nbytes < num_bytes:
            self._slots.pop(slot, None)
            self._slots[slot] = allocate(num_bytes)
        return self._slots[slot]


def tell(url: str, told: Sequence[str], num_bytes: int, load_format: str | None = FLAT) -> None:
    """Have a server read a bucket: one text of `flat_handles` for each of its ranks; with None as
    `load_format`, of `handles`."""
    body = {
        "serialized_named_tensors": list(told),
        "load_format": load_format,
        "flush_cache": False,
        "weight_version": BROKEN_WEIGHTS,
    }
    order(url, "/update_weights_from_tensor", body, timeout=transfer_bound_s(num_bytes, TAKE_S))
