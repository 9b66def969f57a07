"""A push of buckets to servers that wait for them: what shared memory and broadcast share.

    pack two buckets ─▶ pause ─▶ send a bucket, pack the next, ... ─▶ continue
    send a bucket, pack the next, ... ─▶ pause ─▶ load what arrived ─▶ continue

Packing starts before the pause: while the model fits into two buckets, servers wait only for what
they do themselves. The second way is for servers that receive while they generate. Pipeline stages
take turns, because a server takes one request at a time: two stages that wait for each other's
server would wait for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from engines.weights.buckets import Bucket, Memory, TrainedWeights
from engines.weights.ranks import Ranks
from engines.weights.transport import PublishReport, Target
from engines.weights.update import Servers, Update, finish

Send = Callable[[Servers, Bucket], Sequence[Future[Any]]]
"""starts sending a bucket to all servers; its memory is free once the futures are done"""
_AHEAD = 2

T = TypeVar("T")


def stream(
    name: str,
    weights: TrainedWeights,
    targets: Sequence[Target],
    version: int,
    memory: Memory,
    send: Send,
    load: Callable[[Servers], None] | None = None,
) -> PublishReport:
    """Send every bucket of every rank while the servers wait; with `load`, which has them take what
    arrived, before they do. Raises as `Transport.push` does."""
    began = time.perf_counter()
    ranks, within_s = weights.ranks, weights.wait_s()
    buckets = weights.buckets(memory)
    packed = deque(islice(buckets, _AHEAD))
    with Servers([target.url for target in targets]) as servers:
        bring = partial(_send_all, packed, buckets, partial(send, servers))
        sent = _by_stage(ranks, bring, within_s) if load is not None else 0
        update = Update(servers, version)
        try:
            ranks.settle(update.begin if ranks.is_leader else None)
            if load is not None:
                _by_stage(ranks, partial(load, servers), within_s)
            else:
                sent = _by_stage(ranks, bring, within_s)
            ranks.settle(update.end if ranks.is_leader else None)
        except BaseException:
            if ranks.is_leader:
                update.give_up()
            raise
    return PublishReport(
        version=version,
        transport=name,
        bytes=sum(ranks.gather(sent or 0)),
        servers=len(targets),
        seconds=time.perf_counter() - began,
        pause_seconds=update.pause_seconds,
    )


def _by_stage(ranks: Ranks, action: Callable[[], T], within_s: float) -> T | None:
    """Done by the ranks of one stage after those of the other; what it gave on this one."""
    done: T | None = None
    for stage in range(ranks.num_stages):
        result = ranks.settle(action if stage == ranks.stage else None, within_s)
        done = result if stage == ranks.stage else done
    return done


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
