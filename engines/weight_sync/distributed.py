"""Weights by broadcast over a process group of the trainer's rank 0 and all server ranks.

For trainers and servers on different hosts: nccl between GPUs, gloo elsewhere. The group is made
once and used for every publish.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from engines.sglang.http import call, order
from engines.weight_sync.report import PublishReport
from engines.weight_sync.update import CONTROL_S, TRANSFER_S, updating

if TYPE_CHECKING:
    from torch import Tensor

_JOIN_S = 120.0


class DistributedPublisher:
    """Rank 0 of the group; server ranks follow in the order of `endpoints`."""

    def __init__(
        self,
        endpoints: Sequence[str],
        master_address: str,
        master_port: int,
        backend: str = "nccl",
        name: str = "tributary",
    ) -> None:
        """Join with every server. `master_address` must be reachable from all of them."""
        from torch.distributed.distributed_c10d import ProcessGroup

        self._endpoints = tuple(endpoints)
        self._name = name
        self._pool = ThreadPoolExecutor(len(endpoints) + 1, thread_name_prefix="publish")
        sizes = [int(call(url, "/server_info", timeout=CONTROL_S)["tp_size"]) for url in endpoints]
        world_size = 1 + sum(sizes)
        joins: list[Future[Any]] = []
        for i, url in enumerate(endpoints):
            body = {
                "master_address": master_address,
                "master_port": master_port,
                "rank_offset": 1 + sum(sizes[:i]),
                "world_size": world_size,
                "group_name": name,
                "backend": backend,
            }
            path = "/init_weights_update_group"
            joins.append(self._pool.submit(order, url, path, body, timeout=_JOIN_S))
        address = f"tcp://{master_address}:{master_port}"
        self._group: ProcessGroup = _join(backend, address, world_size, name)
        for join in joins:
            join.result(timeout=_JOIN_S)

    def publish(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> PublishReport:
        """Broadcast all tensors (HF names, full shapes) as weights `version`.

        Raises EngineError if a server refuses; see `updating` for what it then serves.
        """
        from torch.distributed import distributed_c10d as c10d

        start = time.perf_counter()
        tensors = [(name, tensor.detach().contiguous()) for name, tensor in named_tensors]
        body = {
            "names": [name for name, _ in tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
            "group_name": self._name,
            "weight_version": str(version),
            "flush_cache": False,
        }
        with updating(self._endpoints, version):
            path = "/update_weights_from_distributed"
            updates = [
                self._pool.submit(order, url, path, body, timeout=TRANSFER_S)
                for url in self._endpoints
            ]
            for _, tensor in tensors:
                options = c10d.BroadcastOptions()
                options.rootRank = 0
                self._group.broadcast([tensor], options).wait()
            for update in updates:
                update.result(timeout=TRANSFER_S)
        return PublishReport(
            version=version,
            transport="distributed",
            bytes=sum(tensor.nbytes for _, tensor in tensors),
            servers=len(self._endpoints),
            seconds=time.perf_counter() - start,
        )

    def close(self) -> None:
        """Leave the group on every server."""
        body = {"group_name": self._name}
        for url in self._endpoints:
            order(url, "/destroy_weights_update_group", body, timeout=CONTROL_S)
        self._pool.shutdown()


def _join(backend: str, address: str, world_size: int, name: str) -> Any:
    """A process group apart from torch's global one, which the trainer uses for itself.

    SGLang makes its side the same way: a store under the group's name, then the bare constructor.
    """
    import torch
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import distributed_c10d as c10d

    from engines.rendezvous import store_at

    limit = timedelta(seconds=_JOIN_S)
    store = store_at(address, 0, world_size, limit)
    group, _ = c10d._new_process_group_helper(  # type: ignore[reportPrivateUsage]
        world_size,
        0,
        [],
        c10d.Backend(backend),
        PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=limit,
        device_id=None if backend == "gloo" else torch.device("cuda", torch.cuda.current_device()),
    )
    return group
