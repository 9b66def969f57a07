"""A push of buckets to servers that wait for them: what shared memory and broadcast share.

    pack two buckets ─▶ pause ─▶ send a bucket, pack the next, ... ─▶ continue

Packing starts before the pause: while the model fits into two buckets, servers wait only for what
they do themselves. Pipeline stages take turns, because a server takes one request at a time: two
stages that wait for each other's server would wait for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

from engines.weights.buckets import Bucket, Memory, TrainedWeights
from engines.weights.report import PublishReport
from engines.weights.transport import Target
from engines.weights.update import Servers, Update, finish

Send = Callable[[Servers, Bucket], Sequence[Future[Any]]]
"""starts sending a bucket to all servers; its memory is free once the futures are done"""
_AHEAD = 2


def stream(
    name: str,
    weights: TrainedWeights,
    targets: Sequence[Target],
    version: int,
    memory: Memory,
    send: Send,
) -> PublishReport:
    """Send every bucket of every rank while the servers wait; raises as `Transport.push` does."""
    began = time.perf_counter()
    ranks = weights.ranks
    buckets = weights.buckets(memory)
    packed = deque(islice(buckets, _AHEAD))
    with Servers([target.url for target in targets]) as servers:
        update = Update(servers, version)
        try:
            ranks.settle(update.begin if ranks.is_leader else None)
            sent = 0
            for stage in range(ranks.num_stages):
                mine = partial(_send_all, packed, buckets, partial(send, servers))
                sent += ranks.settle(mine if stage == ranks.stage else None) or 0
            ranks.settle(update.end if ranks.is_leader else None)
        except BaseException:
            if ranks.is_leader:
                update.give_up()
            raise
    return PublishReport(
        version=version,
        transport=name,
        bytes=sum(ranks.gather(sent)),
        servers=len(targets),
        seconds=time.perf_counter() - began,
        pause_seconds=update.pause_seconds,
    )


def _send_all(
    packed: deque[Bucket | None],
    rest: Iterator[Bucket | None],
    send: Callable[[Bucket], Sequence[Future[Any]]],
) -> int:
    """Send buckets in turn; returns their bytes.

    After a failure the others are packed all the same: peers wait to hand over their shards.
    """
    sent, failed = 0, None
    while packed:
        bucket = packed.popleft()
        sending: Sequence[Future[Any]] = ()
        try:
            if bucket is not None and failed is None:
                sending = send(bucket)
                sent += bucket.flat.nbytes
        except Exception as error:
            failed = error
        if not packed:
            packed.extend(islice(rest, 1))
        try:
            finish(sending)
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return sent
