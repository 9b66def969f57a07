"""A push by broadcast: which way it takes, and the groups that it keeps.

Each pipeline stage's sender has a process group with all servers, in which it is rank 0. A group
holds until the servers change: another set of them, or one that holds other weights than the last
push left there, for it was restarted and knows nothing of the group.

This is the trainer's side of weights that arrive while servers generate; `arrivals.py` is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from engines.devices.waiting_time import transfer_bound_s
from engines.rendezvous import listen
from engines.sglang.http import UnknownRequest, call, order
from engines.weights.broadcast.arrivals import (
    JOIN,
    LEAVE,
    OPEN,
    RECEIVE,
    broadcast,
    gloo_group,
)
from engines.weights.broadcast.engine_group import JOIN_S, EngineGroup, failed, join_all
from engines.weights.buckets import TAKE_S, Bucket, OwnMemory, TrainedWeights
from engines.weights.reach import address_towards
from engines.weights.shared_memory import tell
from engines.weights.transport import CONTROL_S, PublishReport, Target
from engines.weights.update import Servers
from engines.weights.weight_stream import stream
from infra.errors import EngineError

_ALIGNED = 64
"""bytes: where a bucket begins in a server's memory, whatever the type of its values"""


class ArrivingGroup:
    """One stage's sender, and the process of each server that answers its requests."""

    def __init__(
        self, targets: Sequence[Target], trainer: str, bucket_sizes: Sequence[int]
    ) -> None:
        """Join with every server. `trainer`: a name that all stages of it share; `bucket_sizes`: of
        each push, in order. Raises EngineError."""
        self._name = f"{trainer}-{uuid4().hex[:8]}"
        self._targets = list(targets)
        self._num_bytes = sum(map(_aligned, bucket_sizes))
        self._begin = 0
        """of the next bucket"""
        urls = self._urls = [target.url for target in targets]
        host = address_towards(urls[0])
        listener = listen(host)
        port = listener.getsockname()[1]

        def join(url: str) -> None:
            body = {
                "trainer": trainer,
                "group": self._name,
                "host": host,
                "port": port,
                "rank": 1 + urls.index(url),
                "world_size": 1 + len(urls),
                "num_bytes": self._num_bytes,
            }
            order(url, JOIN, body, timeout=JOIN_S)

        self._group = join_all(
            urls,
            join,
            lambda: gloo_group(host, port, 0, 1 + len(urls), host, listener),
            lambda _: self.close(),
            f"tcp://{host}:{port}",
        )

    def send(self, servers: Servers, bucket: Bucket) -> list[Future[Any]]:
        """Send to the bucket's place in every server's memory; it is there when the futures are
        done."""
        body = {
            "group": self._name,
            "begin": self._begin,
            "num_bytes": bucket.flat.nbytes,
            "dtype": str(bucket.tensors[0][1].dtype).removeprefix("torch."),
            "names": [name for name, _ in bucket.tensors],
            "shapes": [list(tensor.shape) for _, tensor in bucket.tensors],
        }
        self._begin += _aligned(bucket.flat.nbytes)
        bound_s = transfer_bound_s(bucket.flat.nbytes, TAKE_S)
        taking = servers.start(lambda url: order(url, RECEIVE, body, timeout=bound_s))
        try:
            broadcast(self._group, bucket.flat)
        except RuntimeError as error:
            what = f"did not all receive a bucket of {bucket.flat.nbytes} bytes"
            raise failed(what, self._urls, taking, error) from error
        return taking

    def load(self, servers: Servers) -> None:
        """Have paused servers take what arrived. The next bucket is then a push's first."""
        self._begin = 0
        ranks_of = {target.url: target.num_ranks for target in self._targets}

        def take(url: str) -> None:
            body = {"group": self._name, "num_ranks": ranks_of[url]}
            told = call(url, OPEN, body, timeout=CONTROL_S)["handles"]
            tell(url, told, self._num_bytes)

        servers.each(take)

    def close(self) -> None:
        """Leave the group here and on every server that still answers."""

        def leave(url: str) -> None:
            with suppress(EngineError):
                order(url, LEAVE, {"group": self._name}, timeout=CONTROL_S)

        with Servers(self._urls) as servers:
            servers.each(leave)


def let_weights_arrive(urls: Sequence[str]) -> bool:
    """Return whether all servers are ours, and so can receive beside their work. Raises
    EngineError.
    """
    try:
        for url in urls:
            order(url, LEAVE, {"group": ""}, timeout=CONTROL_S)
    except UnknownRequest:
        return False
    return True


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED) * _ALIGNED


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
