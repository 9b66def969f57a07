"""Laying sequences end to end for one forward pass of one rank.

Everything a layer needs to know about the layout is computed here once per micro-batch, with
numpy, and not once per layer. Axes: T tokens of this rank's pack, R trained rows, B sequences,
S longest sequence.

Context parallelism cuts each sequence in 2 x cp chunks; rank r holds chunks r and 2cp-1-r
("zigzag"), so that causal attention weighs about the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from numpy.typing import NDArray
from torch import Tensor

from engines.batching import MicroBatch
from engines.megatron.parallel import Layout

Ints = NDArray[np.int64]
Values: TypeAlias = "Sequence[Any] | NDArray[Any]"
"""one for each token"""


@dataclass(frozen=True, slots=True)
class FlatSequences:
    """Sequences end to end as arrays: token i of sequence s is at `starts[s] + i`."""

    tokens: Ints
    trained: NDArray[np.bool_]
    """whether the token is one the loss is taken on; never a sequence's first token"""
    starts: Ints
    lengths: Ints

    @staticmethod
    def of(tokens: Sequence[Values], loss_mask: Sequence[Values]) -> FlatSequences:
        """Raises ValueError for an empty sequence or a mask of another length."""
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        masks = np.fromiter(map(len, loss_mask), np.int64, len(loss_mask))
        if lengths.shape != masks.shape or (lengths != masks).any() or (lengths < 1).any():
            raise ValueError("every sequence needs tokens and a loss mask of the same length")
        starts = np.cumsum(lengths) - lengths
        trained = flatten(loss_mask, np.bool_)
        # Nothing predicts a first token.
        trained[starts] = False
        return FlatSequences(flatten(tokens, np.int64), trained, starts, lengths)

    @property
    def num_trained(self) -> Ints:
        """Trained tokens of each sequence."""
        sums = np.concatenate([[0], np.cumsum(self.trained)])
        return sums[self.starts + self.lengths] - sums[self.starts]


def flatten(pieces: Sequence[Values], dtype: Any) -> NDArray[Any]:
    """Lists or arrays end to end, as one array that is nobody else's."""
    return np.concatenate([np.empty(0, dtype), *(np.asarray(p, dtype) for p in pieces)])


@dataclass
class Pack(PackedSeqParams):
    """One micro-batch of one rank, on its device; Megatron passes it to every layer."""

    input_ids: Tensor = None  # type: ignore[assignment]
    """[1, T]"""
    positions: Tensor = None  # type: ignore[assignment]
    """[T] of each token in its sequence"""
    cos: Tensor = None  # type: ignore[assignment]
    """[T, 1, D] of the rotary embedding at those positions; the model sets it"""
    sin: Tensor = None  # type: ignore[assignment]
    """[T, 1, D / 2]"""
    rows: Tensor = None  # type: ignore[assignment]
    """[R] positions in the pack whose next token is trained: only they get logits"""
    labels: Tensor = None  # type: ignore[assignment]
    """[R] the trained tokens themselves"""
    targets: Ints = None  # type: ignore[assignment]
    """[R] where the trained tokens are in the FlatSequences, on the host"""
    sequence_of_row: Ints = None  # type: ignore[assignment]
    """[R] index of the row's sequence in the FlatSequences, on the host"""
    segment_of_row: Ints = None  # type: ignore[assignment]
    """[R] the same as its place in `sequences`"""
    sequences: Ints = None  # type: ignore[assignment]
    """[B] indices of the pack's sequences in the FlatSequences, on the host"""
    num_sequences: int = 0
    """how many of `sequences` are there to be trained: 0 in a pack of padding"""
    q_slots: Tensor | None = None
    """[T] where each token goes in a right-padded [B, S]; None if the pack is that already"""
    q_shape: tuple[int, int] = (0, 0)
    """(B, S) of this rank's queries"""
    k_slots: Tensor | None = None
    """[cp * T] the same for the keys of all context-parallel ranks, gathered; None without cp"""
    k_shape: tuple[int, int] = (0, 0)
    mask: Tensor | None = None
    """[B, 1, S_q, S_k] which keys a query may see; None without cp: plainly causal"""


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
    segment, offset, position = _local_tokens(padded, cp, layout.cp_rank)

    last = lengths[segment] - 1
    source = starts[segment] + np.minimum(position, last)
    successor = np.minimum(source + 1, len(flat.tokens) - 1)
    is_trained = (position < last) & flat.trained[successor]
    rows = np.flatnonzero(is_trained)
    targets = successor[rows]

    cu = _to_device(np.concatenate([[0], np.cumsum(padded)]).astype(np.int32))
    longest = int(padded.max())
    pack = Pack(
        qkv_format="thd",
        cu_seqlens_q=cu,
        cu_seqlens_kv=cu,
        cu_seqlens_q_padded=cu,
        cu_seqlens_kv_padded=cu,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        input_ids=_to_device(flat.tokens[source])[None],
        positions=_to_device(position),
        rows=_to_device(rows),
        labels=_to_device(flat.tokens[targets]),
        targets=targets,
        sequence_of_row=chosen[segment[rows]],
        segment_of_row=segment[rows],
        sequences=chosen,
        num_sequences=len(indices),
    )
    _lay_out_attention(pack, padded, segment, offset, position, layout)
    return pack


def _local_tokens(padded: Ints, cp: int, cp_rank: int) -> tuple[Ints, Ints, Ints]:
    """Of each token this rank holds: its sequence, its index among the rank's tokens of that
    sequence, and its position in the whole sequence. Each [T]."""
    held = padded // cp
    segment = np.repeat(np.arange(len(padded)), held)
    offset = np.arange(int(held.sum())) - np.repeat(np.cumsum(held) - held, held)
    if cp == 1:
        return segment, offset, offset
    chunk = (padded // (2 * cp))[segment]
    position = np.where(
        offset < chunk, cp_rank * chunk + offset, (2 * cp - 2 - cp_rank) * chunk + offset
    )
    return segment, offset, position


def _lay_out_attention(
    pack: Pack, padded: Ints, segment: Ints, offset: Ints, position: Ints, layout: Layout
) -> None:
    cp = layout.parallel.cp
    num, longest = len(padded), int(padded.max())
    longest_held = longest // cp
    pack.q_shape = (num, longest_held)
    if num * longest_held != len(segment):
        pack.q_slots = _to_device(segment * longest_held + offset)
    if cp == 1:
        return
    pack.k_shape = (num, longest)
    positions = [_local_tokens(padded, cp, rank)[2] for rank in range(cp)]
    pack.k_slots = _to_device(np.concatenate([segment * longest + p for p in positions]))
    # Padding queries see the first key only: their output is dropped, but must not be NaN.
    query_position = np.zeros((num, longest_held), np.int64)
    query_position[segment, offset] = position
    pack.mask = _to_device(np.arange(longest) <= query_position[:, None, :, None])


def _to_device(array: NDArray[Any]) -> Tensor:
    from engines.megatron import device

    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(device.device(), non_blocking=True) if device.has_cuda() else tensor
