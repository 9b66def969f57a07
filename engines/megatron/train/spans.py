"""Which of a rank's tokens attend to which keys, in an order that attention needs no padding for.

A *span* is a run of one sequence's tokens. Each of them sees the sequence from its first token to
itself, so a span needs the keys up to its own end. Without context parallelism a span is a whole
sequence. With it each sequence is cut in 2 x cp chunks; rank r holds chunks r and 2cp-1-r
("zigzag") as two spans, so that causal attention weighs about the same on every rank.

A *block* is neighbouring spans that attention takes in one call. Axes: P spans, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SHORT = 256
"""sequences of up to this many tokens share a block, padded to the longest of them: so short, more
calls save little"""


@dataclass(frozen=True, slots=True)
class Block:
    count: int
    """spans"""
    queries: int
    """tokens of the longest of them"""
    keys: int
    """the longest's keys"""
    num_queries: int
    """tokens of all spans together: fewer than count x queries if they are of several lengths"""

    @property
    def num_keys(self) -> int:
        """The same of the keys; only spans that are whole sequences have several lengths."""
        return self.num_queries if self.is_square else self.count * self.keys

    @property
    def is_square(self) -> bool:
        return self.queries == self.keys

    @property
    def is_padded(self) -> bool:
        return self.num_queries < self.count * self.queries


@dataclass(frozen=True, slots=True)
class Spans:
    """Of one rank, in the order in which it holds them."""

    sequence: Ints
    """[P] index of the sequence"""
    start: Ints
    """[P] position of the span's first token in its sequence"""
    queries: Ints
    """[P] tokens of the span"""

    @staticmethod
    def of(lengths: Ints, cp: int, cp_rank: int) -> Spans:
        """The spans of sequences of these lengths, multiples of 2 cp if cp is above 1."""
        numbers = np.arange(len(lengths))
        if cp == 1:
            # Short ones stay in the given order.
            order = np.argsort(np.where(lengths <= SHORT, 0, lengths), kind="stable")
            return Spans(numbers[order], np.zeros_like(lengths), lengths[order])
        chunk = lengths // (2 * cp)
        start = np.concatenate([cp_rank * chunk, (2 * cp - 1 - cp_rank) * chunk])
        queries = np.tile(chunk, 2)
        order = np.lexsort((queries, start))
        return Spans(np.tile(numbers, 2)[order], start[order], queries[order])

    @property
    def keys(self) -> Ints:
        """[P] keys that each span needs."""
        return self.start + self.queries

    def tokens(self) -> tuple[Ints, Ints]:
        """Sequence and position of each token, both [T]."""
        within = runs(np.zeros_like(self.queries), self.queries)
        return np.repeat(self.sequence, self.queries), np.repeat(self.start, self.queries) + within

    def blocks(self) -> list[Block]:
        """Neighbours of equal sizes, and before them the short sequences."""
        whole = not self.start.any()
        num_short = int((self.queries <= SHORT).sum()) if whole else 0
        return list(self._blocks(num_short))

    def _blocks(self, num_short: int) -> Iterator[Block]:
        keys = self.keys
        if num_short:
            short = self.queries[:num_short]
            longest = int(short.max())
            yield Block(num_short, longest, longest, int(short.sum()))
        differs = (np.diff(self.queries) != 0) | (np.diff(keys) != 0)
        ends = [*(np.flatnonzero(differs) + 1).tolist(), len(keys)]
        first = num_short
        for end in ends:
            if end > first:
                size, count = int(self.queries[first]), end - first
                yield Block(count, size, int(keys[first]), count * size)
                first = end

    def slots(self, block: Block) -> Ints:
        """Where each token of the first block goes if its spans are padded to equal length."""
        return runs(np.arange(block.count) * block.queries, self.queries[: block.count])

    def key_rows(self, lengths: Ints, cp: int) -> Ints:
        """Of each span its keys, as rows of all cp ranks' tokens one rank after the other."""
        first = np.cumsum(lengths) - lengths
        row_of = np.empty(int(lengths.sum()), np.int64)
        held = [Spans.of(lengths, cp, rank).tokens() for rank in range(cp)]
        sequence, position = (np.concatenate(part) for part in zip(*held, strict=True))
        row_of[first[sequence] + position] = np.arange(len(sequence))
        return row_of[runs(first[self.sequence], self.keys)]


def runs(starts: Ints, lengths: Ints) -> Ints:
    """start, start + 1, ... for each length, end to end: runs([5, 0], [2, 3]) is [5 6 0 1 2]."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
