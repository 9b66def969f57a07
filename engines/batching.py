"""Which sequences share a micro-batch, on which data-parallel rank. Pure Python, no torch.

A *micro-batch* is one packed forward pass of one rank: sequences laid end to end, at most
`max_tokens` long together. Every rank computes the same plan from the same numbers, so no rank
has to be told.

    costs -> ranks of equal cost -> each rank's sequences packed by tokens, first fit
          -> equally many micro-batches on every rank -> each rank's heaviest first

Ranks come first: a step lasts as long as its slowest rank, and equal tokens are not equal time,
because attention costs the square of a length.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

MicroBatch = list[int]
"""indices of the sequences packed together; empty where a rank only keeps step with the others"""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One sequence of supervised training; loss is taken on tokens whose mask is 1.

    Example: TokenSequence(tokens=[5, 9, 7, 2], loss_mask=[0, 0, 1, 1])
    """

    tokens: list[int]
    loss_mask: list[int]
    weight: float = 1.0
    """factor of its loss; the mean is over trained tokens, whatever their weights"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answers to one prompt: the better and the worse one, a list, or one that was judged alone."""

    answers: list[TokenSequence]
    is_good: bool = True
    """of one alone: whether it was judged to be good"""
    margin: float = 0.0
    """of a pair: by how much the better one was judged to be better"""
    worth: list[float] = field(default_factory=list[float])
    """what was said of each answer: more is better"""
    reference: list[float] = field(default_factory=list[float])
    """the reference's logprob of each answer's trained tokens, then of `other`'s; empty without
    one"""
    other: TokenSequence | None = None
    """another row's answer behind this prompt, which a baseline is estimated from"""


def plan_micro_batches(
    lengths: Sequence[int], max_tokens: int, dp: int, costs: Sequence[float]
) -> list[list[MicroBatch]]:
    """Pack sequences of these lengths for `dp` ranks: `plan[rank][i]` is a micro-batch.

    `costs` says what each sequence costs, in any unit, none negative: its FLOPs, so that a rank's
    time follows from them. Ranks get close to equal cost and equally many micro-batches; a rank
    with too few sequences gets empty ones. A micro-batch holds at most `max_tokens`, or one longer
    sequence alone. Each rank's heaviest micro-batch comes first, so that those which run at the
    same time weigh about the same. Raises ValueError for a bound that is not positive, or another
    number of costs than of lengths.
    """
    if max_tokens < 1 or dp < 1:
        raise ValueError(f"max_tokens and dp must be positive, got {max_tokens} and {dp}")
    if len(costs) != len(lengths):
        raise ValueError(f"{len(lengths)} sequences need as many costs, got {len(costs)}")
    ranks = _share_out(range(len(lengths)), costs, dp)
    plan = [_first_fit(indices, lengths, max_tokens) for indices in ranks]
    count = max(1, *map(len, plan))
    return [_in_rounds(_split(batches, count, costs), costs) for batches in plan]


def best_fit(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Best-fit decreasing: the longest first, each into the fullest bin of this size that has room.

    Returns the places of each bin's lengths. Raises ValueError for a length above `size`.
    """
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    """of bins that are not full, with their numbers: the least room first"""
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        at = bisect_left(rooms, (lengths[index], 0))
        if at == len(rooms):
            rooms.append((size, len(bins)))
            bins.append([])
        room, number = rooms.pop(at)
        if lengths[index] > room:
            raise ValueError(f"a length of {lengths[index]} does not fit in {size}")
        bins[number].append(index)
        if room > lengths[index]:
            insort(rooms, (room - lengths[index], number))
    return bins


def _share_out(indices: Sequence[int], costs: Sequence[float], shares: int) -> list[list[int]]:
    """The costliest first, each to the share that has least so far (Graham 1969: at most 4/3 of
    the best split; long tails come within a few percent of it)."""
    parts: list[list[int]] = [[] for _ in range(shares)]
    # Cost, then number: sequences that cost nothing are spread as well.
    loads = [(0.0, 0, share) for share in range(shares)]
    for index in sorted(indices, key=costs.__getitem__, reverse=True):
        load, number, share = loads[0]
        parts[share].append(index)
        heapq.heapreplace(loads, (load + costs[index], number + 1, share))
    return parts


def _first_fit(indices: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[MicroBatch]:
    """First-fit decreasing: the longest first, each into the first micro-batch that has room.

    A tree of maxima over the micro-batches' rooms finds that place in logarithmic time. Two
    neighbours never fit in one, so that twice as many as the tokens fill are enough, and one more,
    which the next power of two holds.
    """
    num_most = 2 * sum(lengths[i] for i in indices) // max_tokens
    num_leaves = 1 << min(num_most, len(indices)).bit_length()
    batches: list[MicroBatch] = [[] for _ in range(num_leaves)]
    rooms = [max_tokens] * (2 * num_leaves)
    for index in sorted(indices, key=lengths.__getitem__, reverse=True):
        # Only an empty micro-batch has room for a sequence that is too long.
        needed = min(lengths[index], max_tokens)
        node = 1
        while node < num_leaves:
            node = 2 * node if rooms[2 * node] >= needed else 2 * node + 1
        batches[node - num_leaves].append(index)
        rooms[node] -= lengths[index]
        while node > 1:
            node //= 2
            largest = max(rooms[2 * node], rooms[2 * node + 1])
            if rooms[node] == largest:
                break
            rooms[node] = largest
    return [batch for batch in batches if batch]


def _split(batches: list[MicroBatch], count: int, costs: Sequence[float]) -> list[MicroBatch]:
    """Halve the costliest until there are `count`; empty ones where nothing can be halved."""
    batches = list(batches)
    heap = [(-_cost(batch, costs), n) for n, batch in enumerate(batches) if len(batch) > 1]
    heapq.heapify(heap)
    while len(batches) < count:
        if not heap:
            batches.append([])
            continue
        _, n = heapq.heappop(heap)
        batches[n], other = _share_out(batches[n], costs, 2)
        batches.append(other)
        for place in (n, len(batches) - 1):
            if len(batches[place]) > 1:
                heapq.heappush(heap, (-_cost(batches[place], costs), place))
    return batches


def _in_rounds(batches: list[MicroBatch], costs: Sequence[float]) -> list[MicroBatch]:
    order = sorted(range(len(batches)), key=lambda n: (-_cost(batches[n], costs), n))
    return [sorted(batches[n]) for n in order]


def _cost(batch: MicroBatch, costs: Sequence[float]) -> float:
    return sum(costs[i] for i in batch)
