"""A push of buckets to servers that wait for them: what shared memory and broadcast share.

    pack two buckets ─▶ pause ─▶ send a bucket, pack the next, ... ─▶ continue
    send a bucket, pack the next, ... ─▶ pause ─▶ load what arrived ─▶ continue

Packing starts before the pause: while the model fits into two buckets, servers wait only for what
they do themselves. The second way is for servers that receive while they generate. Pipeline stages
take turns, because a server takes one request at a time: two stages that wait for each other's
server would wait for ever.

Sending everything twice shows whether servers read a bucket before its memory was used again.
A server that answers before it has copied a bucket gets, without a word, what the next one but one
has in the same memory. With TRIBUTARY_CHECK_WEIGHTS=1 where the stack starts, every push is
repeated with memory that is used once, and the servers' checksums have to stay.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from engines.weights.buckets import Bucket, Memory, TrainedWeights
from engines.weights.ranks import Ranks
from engines.weights.transport import PublishReport, Target, server_weights
from engines.weights.update import Servers, Update, finish
from infra.errors import EngineError
from infra.processes.variables import CHECK_WEIGHTS, is_on

if TYPE_CHECKING:
    from torch import Tensor


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


def checked_stream(
    name: str,
    weights: TrainedWeights,
    targets: Sequence[Target],
    version: int,
    memory: Memory,
    send: Send,
    allocate: Callable[[int], Tensor],
) -> PublishReport:
    """Return a push as `stream` does it; `allocate`: memory of the same kind that nothing else
    uses.

    Raises EngineError if a server holds other weights than it was sent.
    """

    def push(memory: Memory) -> PublishReport:
        return stream(name, weights, targets, version, memory, send)

    return checked(name, push, memory, allocate, weights.ranks, targets, version)


def checked(
    name: str,
    push: Callable[[Memory], PublishReport],
    memory: Memory,
    allocate: Callable[[int], Tensor],
    ranks: Ranks,
    targets: Sequence[Target],
    version: int,
) -> PublishReport:
    """Check any push through buckets' memory."""
    report = push(memory)
    if not is_on(CHECK_WEIGHTS):
        return report
    ask = partial(_checksums, targets)
    found = ranks.from_leader(ask)
    kept: list[Tensor] = []

    def once(slot: int, num_bytes: int) -> Tensor:
        kept.append(allocate(num_bytes))
        return kept[-1]

    push(once)
    sent = ranks.from_leader(ask)
    wrong = [url for url, checksum in sent.items() if found[url] != checksum]
    if wrong:
        raise EngineError(
            f"weights by {name}: {', '.join(wrong)} held other weights than version {version}: a"
            " server answered before it had read a bucket, whose memory was then used again. Set"
            " `weights.transport` in the stage's resources to `broadcast`, and report it"
        )
    return report


def _checksums(targets: Sequence[Target]) -> dict[str, str]:
    return {target.url: server_weights(target.url).checksum for target in targets}
