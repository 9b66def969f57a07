"""Weights by broadcast, for trainers and servers on different hosts: nccl between GPUs, else gloo.

Each pipeline stage's sender has a process group with all ranks of all servers, in which it is rank
0. A group holds until the servers change: another set of them, or one that holds other weights than
the last push left there, for it was restarted and knows nothing of the group.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from engines.devices.waiting_time import transfer_bound_s
from engines.rendezvous import listen, store_at, use_interface_of
from engines.sglang.http import order
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.buckets import Bucket, OwnMemory, TrainedWeights
from engines.weights.ranks import Ranks
from engines.weights.reach import address_towards
from engines.weights.report import PublishReport
from engines.weights.stream import stream
from engines.weights.transport import CONTROL_S, Target
from engines.weights.update import TAKE_S, Servers, finish
from infra.errors import EngineError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_JOIN_S = 120.0
"""what joining a group, and one bucket's way through it, may take"""
_ANSWER_S = 5.0
"""what servers may take to say what went wrong with them"""
_CPU_BUCKET_BYTES = 24 << 20
"""malloc gives memory of up to 32 MiB again; a server would have larger buckets mapped anew each
time, which takes longer than to receive and to load them"""


class Broadcast:
    """See `Transport`."""

    name = "broadcast"

    def __init__(self) -> None:
        self._group: _Group | None = None
        self._joined: tuple[Target, ...] = ()
        """the servers of the group, with the version that the last push left there"""

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        ranks = weights.ranks
        device = weights.weights[0].local.device
        on_cpu = device.type == "cpu"
        if on_cpu:
            limit = min(weights.bucket_bytes, _CPU_BUCKET_BYTES)
            weights = replace(weights, bucket_bytes=limit)
        try:
            if not all(ranks.gather(self._joined == tuple(targets))):
                self._join(targets, ranks, "gloo" if on_cpu else "nccl")
            memory = OwnMemory(device)
            report = stream(self.name, weights, targets, version, memory, self._send)
        except BaseException:
            self.close()  # some servers may wait in it for what does not come
            raise
        self._joined = tuple(Target(t.url, t.num_ranks, str(version)) for t in targets)
        return report

    def close(self) -> None:
        group, self._group, self._joined = self._group, None, ()
        if group is not None:
            group.close()

    def _join(self, targets: Sequence[Target], ranks: Ranks, backend: str) -> None:
        """One stage after the other: a server waits in one group at a time."""
        self.close()
        for stage in range(ranks.num_stages):
            mine = ranks.is_sender and stage == ranks.stage
            group = ranks.settle(partial(_Group, targets, backend) if mine else None)
            self._group = group or self._group

    def _send(self, servers: Servers, bucket: Bucket) -> list[Future[Any]]:
        if self._group is None:
            raise EngineError("the broadcast has no group: a push joins one first")
        return self._group.send(servers, bucket)


class _Group:
    """One stage's sender and all ranks of all servers."""

    def __init__(self, targets: Sequence[Target], backend: str) -> None:
        """Join with every server, each of which has to reach this host where it reaches them."""
        # A server takes each name once in its life.
        self._name = name = f"tributary-{uuid4().hex}"
        self._urls = [target.url for target in targets]
        host = address_towards(self._urls[0])
        use_interface_of(host)
        listener = listen(host)
        address, port = f"tcp://{host}:{listener.getsockname()[1]}", listener.getsockname()[1]
        world_size = 1 + sum(target.num_ranks for target in targets)
        offsets: dict[str, int] = {}
        for target in targets:
            offsets[target.url] = 1 + sum(t.num_ranks for t in targets[: len(offsets)])

        def join(url: str) -> None:
            body = {
                "master_address": host,
                "master_port": port,
                "rank_offset": offsets[url],
                "world_size": world_size,
                "group_name": name,
                "backend": backend,
            }
            order(url, "/init_weights_update_group", body, timeout=_JOIN_S)

        with Servers(self._urls) as servers:
            joining = servers.start(join)
            try:
                self._group: ProcessGroup = _joined(backend, address, world_size, name, listener)
            except RuntimeError as error:  # all that torch raises here is one
                what = f"did not all join the trainer's process group at {address}"
                raise _failed(what, self._urls, joining, error) from error
            try:
                finish(joining)
            except BaseException:
                self.close()
                raise

    def send(self, servers: Servers, bucket: Bucket) -> list[Future[Any]]:
        """The whole bucket in one broadcast; servers cut it up as they are told."""
        from torch.distributed import distributed_c10d as c10d

        body = {
            "names": [name for name, _ in bucket.tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket.tensors],
            "shapes": [list(tensor.shape) for _, tensor in bucket.tensors],
            "group_name": self._name,
            "load_format": "flattened_bucket",
            "flush_cache": False,
            "weight_version": BROKEN_WEIGHTS,
        }
        path = "/update_weights_from_distributed"
        bound_s = transfer_bound_s(bucket.flat.nbytes, TAKE_S)
        taking = servers.start(lambda url: order(url, path, body, timeout=bound_s))
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        try:
            self._group.broadcast([bucket.flat], options).wait()
        except RuntimeError as error:
            what = f"did not all receive a bucket of {bucket.flat.nbytes} bytes"
            raise _failed(what, self._urls, taking, error) from error
        return taking

    def close(self) -> None:
        """Leave the group here and on every server that still answers."""
        body = {"group_name": self._name}

        def leave(url: str) -> None:
            with suppress(EngineError):
                order(url, "/destroy_weights_update_group", body, timeout=CONTROL_S)

        with Servers(self._urls) as servers:
            servers.each(leave)
        from torch.distributed import distributed_c10d as c10d

        c10d.destroy_process_group(self._group)


def _failed(
    what: str, urls: Sequence[str], asked: Sequence[Future[Any]], error: RuntimeError
) -> EngineError:
    """With what each server says; one that refused is the cause, the others waited for it."""
    wait(asked, timeout=_ANSWER_S)
    told = [f"{url}: {_said(future)}" for url, future in zip(urls, asked, strict=True)]
    return EngineError(
        f"weights by broadcast: servers {what} within {_JOIN_S:.0f} s ({_first_line(error)});"
        f" {'; '.join(told)}. Look at a server that refused or does not answer; if they all run,"
        " let their hosts connect to that of the trainer, or set `weights.transport` in the stage's"
        " resources to `disk_delta` with a `url` that both sides reach"
    )


def _said(future: Future[Any]) -> str:
    if not future.done():
        return "no answer yet"
    error = future.exception()
    return "ready" if error is None else _first_line(error)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _joined(
    backend: str, address: str, world_size: int, name: str, listener: socket.socket
) -> ProcessGroup:
    """A process group apart from torch's global one, which the trainer uses for itself.

    SGLang makes its side the same way: a store under the group's name, then the bare constructor.
    """
    import torch
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import distributed_c10d as c10d

    limit = timedelta(seconds=_JOIN_S)
    store = store_at(address, 0, world_size, limit, listener)
    made: tuple[Any, Any] = c10d._new_process_group_helper(  # type: ignore[reportPrivateUsage]
        world_size,
        0,
        [],
        c10d.Backend(backend),
        PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=limit,
        device_id=None if backend == "gloo" else torch.device("cuda", torch.cuda.current_device()),
    )
    group: ProcessGroup = made[0]
    # For a group apart torch keeps no ranks, and could not forget it again.
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}  # type: ignore[reportPrivateUsage]
    return group
