"""Laying sequences end to end for one forward pass of one rank.

Everything a layer needs to know about the layout is computed here once per micro-batch, with
numpy, and not once per layer. Axes: T tokens of this rank's pack, R trained rows, B sequences.

A *span* is a run of one sequence's tokens. Each of them sees the sequence from its first token to
itself, so a span needs the keys up to its own end. Without context parallelism a span is a whole
sequence. With it each sequence is cut in 2 x cp chunks; rank r holds chunks r and 2cp-1-r
("zigzag") as two spans, so that causal attention weighs about the same on every rank.

A *block* is neighbouring spans that attention takes in one call. Axes: P spans, T tokens.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from numpy.typing import NDArray
from torch import Tensor

from engines.batching import MicroBatch
from engines.megatron.parallel import Layout
from engines.megatron.train.routes import PackRoutes, Routes
from engines.types import Kept, Sample
from infra.errors import TrainingStopped

Values: TypeAlias = "Sequence[Any] | NDArray[Any]"
"""one for each token"""
Angles: TypeAlias = tuple[Tensor, Tensor]
"""of a rotary embedding at a pack's positions: cosines [T, 1, D] and sines [T, 1, R / 2], of which
R of each head are rotated"""
Ints = NDArray[np.int64]
SHORT = 256
"""sequences of up to this many tokens share a block, padded to the longest of them: so short, more
calls save little"""


@dataclass(frozen=True, slots=True)
class FlatSequences:
    """Sequences end to end: token i of sequence s is at `starts[s] + i`. Their tokens stay where
    they are, in one memory for all ranks of a host: a rank packs its own part of them."""

    pieces: Sequence[Values]
    """the tokens of each"""
    trained: NDArray[np.bool_]
    """whether the token is one the loss is taken on; never a sequence's first token"""
    starts: Ints
    lengths: Ints
    comparison: Ints
    """of each: those of one number stand in a row, and are in one micro-batch, as their loss
    compares them"""
    routes: Routes | None = None
    """the tokens' experts, which a pass notes or takes; None: it does neither"""
    kept: Sequence[Kept] | None = None
    """of each sequence, for its trained tokens; None: sampled from all tokens"""

    @staticmethod
    def of(
        tokens: Sequence[Values],
        loss_mask: Sequence[Values],
        kept: Sequence[Kept | None] = (),
        *,
        together: Sequence[int] | None = None,
    ) -> FlatSequences:
        """`together`: how many in a row each comparison has; none: one. Raises ValueError for an
        empty sequence or a mask of another length."""
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        masks = np.fromiter(map(len, loss_mask), np.int64, len(loss_mask))
        if lengths.shape != masks.shape or (lengths != masks).any() or (lengths < 1).any():
            raise ValueError("every sequence needs tokens and a loss mask of the same length")
        starts = np.cumsum(lengths) - lengths
        trained = flatten(loss_mask, np.bool_)
        # Nothing predicts a first token.
        trained[starts] = False
        sizes = np.ones_like(lengths) if together is None else np.array(together, np.int64)
        comparison = np.repeat(np.arange(len(sizes)), sizes)
        said = None
        if any(ids is not None for ids in kept):
            said = [np.empty(0, np.int32) if ids is None else ids for ids in kept]
        return FlatSequences(tokens, trained, starts, lengths, comparison, kept=said)

    @staticmethod
    def of_samples(
        samples: Sequence[Sample], together: Sequence[int] | None = None
    ) -> FlatSequences:
        """Make sequences with what their engine kept at their trained tokens, if it said so."""
        tokens, masks, kept = zip(*((s.tokens, s.loss_mask, s.kept) for s in samples), strict=True)
        return FlatSequences.of(tokens, masks, kept, together=together)

    def comparisons(self, indices: Ints) -> list[Ints]:
        """The indices, which have whole comparisons, comparison by comparison."""
        begins = np.flatnonzero(np.diff(self.comparison[indices], prepend=-1))
        return np.split(indices, begins[1:]) if len(indices) else []

    @property
    def num_trained(self) -> Ints:
        """Trained tokens of each sequence."""
        spans = zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        counts = (np.count_nonzero(self.trained[start : start + n]) for start, n in spans)
        return np.fromiter(counts, np.int64, len(self.starts))

    @property
    def num_tokens(self) -> int:
        return len(self.trained)

    @property
    def tokens(self) -> Ints:
        """Return all of them, made anew: eight bytes for each."""
        return flatten(self.pieces, np.int64)


def sparse_zeros(size: int) -> NDArray[np.float32]:
    """Zeros that take memory only where something is written, in pages of a few kilobytes: numpy
    asks for pages of megabytes, in which the samples of several ranks lie."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(4 * size, 1), flags=flags)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32, size)


def flatten(pieces: Sequence[Values], dtype: Any) -> NDArray[Any]:
    """Lists or arrays end to end, as one array that is nobody else's."""
    return np.concatenate([np.empty(0, dtype), *(np.asarray(p, dtype) for p in pieces)])


@dataclass
class Pack(PackedSeqParams):
    """One micro-batch of one rank, on its device; Megatron passes it to every layer."""

    input_ids: Tensor = None  # pyrefly: ignore[bad-assignment]
    """[1, T]"""
    positions: Tensor = None  # pyrefly: ignore[bad-assignment]
    """[T] of each token in its sequence"""
    angles: Angles = None  # pyrefly: ignore[bad-assignment]
    """the model sets them"""
    window_angles: Angles = None  # pyrefly: ignore[bad-assignment]
    """of layers with a sliding window, in a model that has some"""
    rows: Tensor = None  # pyrefly: ignore[bad-assignment]
    """[R] positions in the pack whose next token is trained: only they get logits"""
    labels: Tensor = None  # pyrefly: ignore[bad-assignment]
    """[R] the trained tokens themselves"""
    targets: Ints = None  # pyrefly: ignore[bad-assignment]
    """[R] where the trained tokens are in the FlatSequences, on the host"""
    sequence_of_row: Ints = None  # pyrefly: ignore[bad-assignment]
    """[R] index of the row's sequence in the FlatSequences, on the host"""
    segment_of_row: Ints = None  # pyrefly: ignore[bad-assignment]
    """[R] the same as its place in `sequences`"""
    sequences: Ints = None  # pyrefly: ignore[bad-assignment]
    """[B] indices of the pack's sequences in the FlatSequences, on the host"""
    num_sequences: int = 0
    """how many of `sequences` are there to be trained: 0 in a pack of padding"""
    blocks: Sequence[Block] = ()
    """what attention takes in one call each"""
    slots: Tensor | None = None
    """where each token of the first block goes when its sequences are padded; None: they are not"""
    key_rows: Tensor | None = None
    """[K] the spans' keys among the tokens of all context-parallel ranks; None without cp"""
    routes: PackRoutes | None = None
    """experts of the pack's tokens; None: routers choose"""
    kept: Tensor | None = None
    """[R, K] what was kept at the labels' places, the label first; -1: no more"""

    def forget_angles(self) -> None:
        self.angles = self.window_angles = None  # pyrefly: ignore[bad-assignment]


def build_pack(flat: FlatSequences, indices: MicroBatch, layout: Layout) -> Pack:
    """Pack the sequences `indices` as this rank needs them.

    An empty `indices` gives a pack of untrained padding, for a rank that only keeps step.
    """
    cp, tp = layout.parallel.cp, layout.parallel.tp
    chosen = np.asarray(indices or [0], np.int64)
    lengths = flat.lengths[chosen] if indices else np.ones(1, np.int64)
    starts = flat.starts[chosen]
    align = 2 * cp if cp > 1 else 1
    padded = -(-lengths // align) * align
    # Sequence parallelism splits the pack's tokens over the tensor-parallel ranks.
    padded[-1] += -int(padded.sum()) % (align * tp)
    spans = Spans.of(padded, cp, layout.cp_rank)
    segment, position = spans.tokens()

    last = lengths[segment] - 1
    source = starts[segment] + np.minimum(position, last)
    successor = np.minimum(source + 1, flat.num_tokens - 1)
    is_trained = (position < last) & flat.trained[successor]
    rows = np.flatnonzero(is_trained)
    targets = successor[rows]

    # Of the chosen sequences alone, where `tokens` has them end to end.
    tokens = flatten([flat.pieces[number] for number in chosen], np.int64)
    begins = np.cumsum(flat.lengths[chosen]) - flat.lengths[chosen]
    local = begins[segment] + np.minimum(position, last)

    routes = None
    if flat.routes is not None:
        is_padding = (position > last) | (not indices)
        routes = flat.routes.of_pack(source, is_padding, layout)

    labels = tokens[local[rows] + 1]
    kept = None
    if flat.kept is not None:
        kept = _to_device(_kept(flat, chosen, local[rows] + 1, labels))

    ends_q, ends_k = (_to_device(_ends(sizes)) for sizes in (spans.queries, spans.keys))
    blocks = spans.blocks()
    return Pack(
        qkv_format="thd",
        cu_seqlens_q=ends_q,
        cu_seqlens_kv=ends_k,
        cu_seqlens_q_padded=ends_q,
        cu_seqlens_kv_padded=ends_k,
        max_seqlen_q=int(spans.queries.max()),
        max_seqlen_kv=int(spans.keys.max()),
        input_ids=_to_device(tokens[local])[None],
        positions=_to_device(position),
        rows=_to_device(rows),
        labels=_to_device(labels),
        targets=targets,
        sequence_of_row=chosen[segment[rows]],
        segment_of_row=segment[rows],
        sequences=chosen,
        num_sequences=len(indices),
        blocks=blocks,
        slots=_to_device(spans.slots(blocks[0])) if blocks[0].is_padded else None,
        key_rows=_to_device(spans.key_rows(padded, cp)) if cp > 1 else None,
        routes=routes,
        kept=kept,
    )


def _kept(flat: FlatSequences, chosen: Ints, places: Ints, labels: Ints) -> Ints:
    """`Pack.kept`; the labels are at these places among the chosen sequences' tokens. Raises
    TrainingStopped where it was not said of each trained token what was kept."""
    assert flat.kept is not None
    ids = flatten([flat.kept[number] for number in chosen], np.int64)
    begins = np.flatnonzero(ids < 0)
    sizes = np.diff(begins, append=len(ids))
    spans = zip(flat.starts[chosen].tolist(), flat.lengths[chosen].tolist(), strict=True)
    trained = np.concatenate([flat.trained[start : start + count] for start, count in spans])
    is_whole = len(begins) == np.count_nonzero(trained)
    if is_whole:
        numbers = np.cumsum(trained)[places] - 1
        begins, sizes = begins[numbers], sizes[numbers]
        is_whole = np.array_equal(~ids[begins], labels)
    if not is_whole:
        raise TrainingStopped(
            "a sample does not say of each trained token which ones algorithm.keep left beside it;"
            " sample it again, or leave keep out"
        )
    rows = np.full((len(places), int(sizes.max(initial=1))), -1, np.int64)
    rows[np.arange(rows.shape[1]) < sizes[:, None]] = ids[runs(begins, sizes)]
    rows[:, 0] = labels
    return rows


def _ends(sizes: Ints) -> NDArray[np.int32]:
    """0 and the running sums of sizes, as the kernels want them."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def _to_device(array: NDArray[Any]) -> Tensor:
    from engines.megatron import device

    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(device.device(), non_blocking=True) if device.has_cuda() else tensor


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
        """Return the number of keys; only spans that are whole sequences have several lengths."""
        return self.num_queries if self.is_square else self.count * self.keys

    @property
    def is_square(self) -> bool:
        return self.queries == self.keys

    @property
    def is_padded(self) -> bool:
        return self.num_queries < self.count * self.queries


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of one rank, in the order in which it holds them."""

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
        """Return where each token of the first block goes if its spans are padded to equal
        length."""
        return runs(np.arange(block.count) * block.queries, self.queries[: block.count])

    def key_rows(self, lengths: Ints, cp: int) -> Ints:
        """Return the keys of each span, as rows of all cp ranks' tokens one rank after the
        other."""
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


def in_turn(packs: Sequence[Pack], under_way: int) -> Iterator[Pack]:
    """Yield each pack; the angles of one are given back when its backward pass is over, as at most
    `under_way` of them are between their passes: they take more than all else of a pack."""
    for number, pack in enumerate(packs):
        if number >= under_way:
            packs[number - under_way].forget_angles()
        yield pack
