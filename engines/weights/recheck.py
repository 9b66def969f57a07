"""Whether servers read a bucket before its memory was used again: seen by sending everything twice.

A server that answers before it has copied a bucket gets, without a word, what the next one but one
has in the same memory. With TRIBUTARY_CHECK_WEIGHTS=1 where the stack starts, every push is
repeated with memory that is used once, and the servers' checksums have to stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from engines.weights.buckets import Memory, TrainedWeights
from engines.weights.ranks import Ranks
from engines.weights.transport import PublishReport, Target, server_weights
from engines.weights.weight_stream import Send, stream
from infra.errors import EngineError
from infra.processes.variables import CHECK_WEIGHTS, is_on

if TYPE_CHECKING:
    from torch import Tensor


def checked_stream(
    name: str,
    weights: TrainedWeights,
    targets: Sequence[Target],
    version: int,
    memory: Memory,
    send: Send,
    allocate: Callable[[int], Tensor],
) -> PublishReport:
    """A push as `stream` does it; `allocate`: memory of the same kind that nothing else uses.

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
    """The same for any push through buckets' memory."""
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
