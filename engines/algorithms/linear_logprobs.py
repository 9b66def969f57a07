"""Log-probabilities and entropies straight from hidden states, with a bounded part of the logits.

The vocabulary is walked in tiles. Each tile's part of the weight's gradient is then written once,
and a tile is small enough to stay near the processor between the passes over it:

    forward   logits of a tile -> their peak, sums of exponentials, the label's logit
    backward  logits of a tile, kept or made again -> their gradient -> hidden's and weight's

Axes: R rows, H hidden size, V this rank's part of the vocabulary, N tiles, C columns of a tile,
L labels of a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from engines.memory import activations as tiling


def linear_logprobs(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    group: dist.ProcessGroup | None = None,
    fused: bool = False,
) -> tuple[Tensor, Tensor]:
    """(logprob of each row's label, entropy [R] of each row's distribution), fp32, in nats. Labels
    are [R], or [R, L] where several of a row are asked for; their logprobs have the same size.

    The distribution is softmax(hidden_RH @ weight_VH.T / temperature), its logits rounded to the
    inputs' type; the temperature is all rows', or [R] each row's own. Both results are
    differentiable in hidden and weight. `group` holds the ranks that share the vocabulary, in
    order, in equal parts, with the same hidden states: hidden's gradient is summed over them. None
    if this rank has the vocabulary whole. `fused`: what is done with a tile between its matrix
    products is one kernel, which torch.compile makes; the same but for rounding. There is none for
    several labels.
    """
    has_backward = torch.is_grad_enabled() and (hidden_RH.requires_grad or weight_VH.requires_grad)
    kept_bytes = tiling.KEPT_BYTES if has_backward else 0
    labels_RL = labels if labels.dim() == 2 else labels[:, None]
    fused = fused and labels_RL.size(1) == 1
    if isinstance(temperature, Tensor):
        temperature = temperature[:, None]
    logprobs_RL, entropy_R = _LinearLogprobs.apply(
        hidden_RH, weight_VH, labels_RL, temperature, group, fused, kept_bytes
    )
    return logprobs_RL.view_as(labels), entropy_R


def among_kept(logprobs_RK: Tensor, is_kept_RK: Tensor) -> tuple[Tensor, Tensor]:
    """(logprob of each row's first token, entropy), both [R], of the distribution over the row's
    kept tokens alone: p(k) / sum of the kept ones' p. Differentiable.

    Example: kept tokens of 0.5 and 0.25: ln 2/3 = -0.4055, and 0.6365.
    """
    whole_RK = logprobs_RK.masked_fill(~is_kept_RK, -torch.inf).log_softmax(1)
    entropy_R = -(whole_RK.exp() * whole_RK.masked_fill(~is_kept_RK, 0.0)).sum(1)
    return whole_RK[:, 0], entropy_R


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any,
        hidden_RH: Tensor,
        weight_VH: Tensor,
        labels_RL: Tensor,
        temperature: float | Tensor,
        group: dist.ProcessGroup | None,
        fused: bool,
        kept_bytes: int,
    ) -> tuple[Tensor, Tensor]:
        tiles = _Tiles.of(hidden_RH, weight_VH, labels_RL, temperature, group, fused)
        needs_weight = kept_bytes > 0 and ctx.needs_input_grad[1]
        room_VH = weight_VH.new_empty(weight_VH.shape) if needs_weight else None
        ctx.kept = _Kept(room_VH, kept_bytes)
        sums = _walk(tiles, ctx.kept)
        logprob_RL, *saved = _over_ranks(sums, tiles.is_here_RL, temperature, group)
        ctx.save_for_backward(hidden_RH, weight_VH, labels_RL, *saved)
        ctx.temperature, ctx.group, ctx.fused = temperature, group, fused
        ctx.set_materialize_grads(False)
        return logprob_RL, saved[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        hidden_RH, weight_VH, labels_RL, *saved = ctx.saved_tensors
        tiles = _Tiles.of(hidden_RH, weight_VH, labels_RL, ctx.temperature, ctx.group, ctx.fused)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        # Summed over tiles, so in fp32; the weight's parts are not.
        hidden_grad = torch.zeros_like(hidden_RH, dtype=torch.float32) if needs_hidden else None
        weight_grad = ctx.kept.take_room(weight_VH) if needs_weight else None
        for start, end in tiles.spans:
            logits_RC = ctx.kept.logits.pop(start, None)
            if logits_RC is None:
                logits_RC = tiles.logits(start, end, tiles.buffers[0])
            grad_RC = _logits_gradient(tiles, start, logits_RC, saved, *upstream)
            if hidden_grad is not None:
                hidden_grad += grad_RC @ weight_VH[start:end]
            if weight_grad is not None:
                torch.mm(grad_RC.t(), hidden_RH, out=weight_grad[start:end])
        if hidden_grad is not None:
            _all_reduce(hidden_grad, dist.ReduceOp.SUM, ctx.group)
            hidden_grad = hidden_grad.to(hidden_RH.dtype)
        return hidden_grad, weight_grad, None, None, None, None, None


@dataclass(frozen=True, slots=True)
class _Tiles:
    """This rank's part of the vocabulary, cut in tiles."""

    hidden_RH: Tensor
    weight_VH: Tensor
    local_RL: Tensor
    """labels counted from this rank's first column"""
    temperature: float | Tensor
    """all rows', or [R, 1]"""
    spans: list[tuple[int, int]]
    """first column of each tile, and one past its last"""
    buffers: tuple[Tensor, Tensor, Tensor]
    """flat, each for a tile: logits, and two in fp32. Fresh memory for each tile is slow"""
    fused: bool
    """then both in fp32 are empty: such numbers never leave a kernel"""

    @staticmethod
    def of(
        hidden_RH: Tensor,
        weight_VH: Tensor,
        labels_RL: Tensor,
        temperature: float | Tensor,
        group: dist.ProcessGroup | None,
        fused: bool,
    ) -> _Tiles:
        num_rows, size = len(hidden_RH), len(weight_VH)
        width = tiling.tile_width(num_rows, size, hidden_RH.device.type)
        spans = [(start, min(start + width, size)) for start in range(0, size, width)]
        first = size * group.rank() if group is not None else 0
        entries = num_rows * width
        logits = hidden_RH.new_empty(entries)
        work = hidden_RH.new_empty((2, 0 if fused else entries), dtype=torch.float32)
        buffers = (logits, work[0], work[1])
        return _Tiles(hidden_RH, weight_VH, labels_RL - first, temperature, spans, buffers, fused)

    @property
    def is_here_RL(self) -> Tensor:
        """Return whether a row's label is in this rank's part."""
        return (self.local_RL >= 0) & (self.local_RL < len(self.weight_VH))

    def logits(self, start: int, end: int, buffer: Tensor) -> Tensor:
        """[R, C] before temperature, in `buffer`."""
        out = self._view(buffer, end - start)
        return torch.mm(self.hidden_RH, self.weight_VH[start:end].t(), out=out)

    def shifted(self, logits_RC: Tensor, by_R: Tensor) -> Tensor:
        """[R, C] fp32 (logits - by) / temperature, in the second buffer."""
        out = self._view(self.buffers[1], logits_RC.size(1))
        torch.sub(logits_RC, by_R[:, None], out=out)
        is_one = isinstance(self.temperature, float) and self.temperature == 1.0
        return out if is_one else out.div_(self.temperature)

    def exp(self, shifted_RC: Tensor) -> Tensor:
        """[R, C] in the third buffer."""
        return torch.exp(shifted_RC, out=self._view(self.buffers[2], shifted_RC.size(1)))

    def _view(self, buffer: Tensor, width: int) -> Tensor:
        num_rows = len(self.hidden_RH)
        return buffer[: num_rows * width].view(num_rows, width)

    def labels(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """[R, L] column of each row's label in this tile, and whether it is there at all."""
        column_RL = self.local_RL - start
        is_here_RL = (column_RL >= 0) & (column_RL < end - start)
        return column_RL.clamp(0, end - start - 1), is_here_RL


@dataclass(slots=True)
class _Kept:
    """Logits that wait for the backward pass.

    The first tiles' lie in what becomes the weight's gradient: tile after tile is used up before
    its place is written, as a tile's logits begin no earlier than its part of the gradient.
    """

    room_VH: Tensor | None
    """None where the weight needs no gradient, or has it already"""
    num_bytes: int
    """additional memory that may be used"""
    logits: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[R, C] by first column"""

    def place(self, tiles: _Tiles, start: int, end: int) -> Tensor | None:
        """Flat memory for a tile's logits; None if there is no more."""
        num_rows, size = tiles.hidden_RH.shape
        if self.room_VH is not None:
            first = max(num_rows, size) * start
            last = first + num_rows * (end - start)
            if last <= self.room_VH.numel():
                return self.room_VH.view(-1)[first:last]
        shared = tiles.buffers[0]
        if shared.nbytes > self.num_bytes:
            return None
        self.num_bytes -= shared.nbytes
        return torch.empty_like(shared)

    def take_room(self, weight_VH: Tensor) -> Tensor:
        """Memory for the weight's gradient; fresh where a backward pass went before."""
        room_VH, self.room_VH = self.room_VH, None
        return weight_VH.new_empty(weight_VH.shape) if room_VH is None else room_VH


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of each tile, relative to its own peak, and the labels' logits."""

    peak_NR: Tensor
    """before temperature"""
    total_NR: Tensor
    """of the exponentials"""
    weighted_NR: Tensor
    """of exponential times exponent"""
    chosen_RL: Tensor
    """the label's logit before temperature; 0 where another rank has it"""


def _walk(tiles: _Tiles, kept: _Kept) -> _Sums:
    """The forward pass over this rank's part; logits are kept while there is memory for them."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    chosen_RL = torch.zeros_like(tiles.local_RL, dtype=torch.float32)
    for start, end in tiles.spans:
        place = kept.place(tiles, start, end)
        logits_RC = tiles.logits(start, end, tiles.buffers[0] if place is None else place)
        if place is not None:
            kept.logits[start] = logits_RC
        found.append(_sums(tiles, logits_RC))
        column_RL, is_here_RL = tiles.labels(start, end)
        chosen_RL += logits_RC.gather(1, column_RL).float().where(is_here_RL, 0.0)
    peak_NR, total_NR, weighted_NR = (torch.stack(parts) for parts in zip(*found, strict=True))
    return _Sums(peak_NR, total_NR, weighted_NR, chosen_RL)


def _sums(tiles: _Tiles, logits_RC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a tile's peak, total and weighted, as in `_Sums`."""
    if tiles.fused:
        return _compiled(_sums_in_one)(logits_RC, tiles.temperature)
    peak_R = logits_RC.amax(1).float()
    shifted_RC = tiles.shifted(logits_RC, peak_R)
    exp_RC = tiles.exp(shifted_RC)
    total_R = exp_RC.sum(1)
    return peak_R, total_R, exp_RC.mul_(shifted_RC).sum(1)


def _sums_in_one(logits_RC: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    peak_R = logits_RC.amax(1).float()
    shifted_RC = (logits_RC.float() - peak_R[:, None]) / temperature
    exp_RC = shifted_RC.exp()
    return peak_R, exp_RC.sum(1), (exp_RC * shifted_RC).sum(1)


def _by_row(temperature: float | Tensor) -> float | Tensor:
    return temperature[:, 0] if isinstance(temperature, Tensor) else temperature


def _over_ranks(
    sums: _Sums, is_here_RL: Tensor, temperature: float | Tensor, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logprob [R, L], peak before temperature, log of the sum of all exponentials relative to it,
    entropy), each [R]."""
    peak_R = sums.peak_NR.amax(0)
    _all_reduce(peak_R, dist.ReduceOp.MAX, group)
    # A tile's sums are relative to its own peak: exp(z - own) = exp(z - peak) / exp(own - peak).
    shift_NR = (sums.peak_NR - peak_R) / _by_row(temperature)
    scale_NR = shift_NR.exp()
    total_R = (sums.total_NR * scale_NR).sum(0)
    weighted_R = ((sums.weighted_NR + sums.total_NR * shift_NR) * scale_NR).sum(0)
    chosen_RL = ((sums.chosen_RL - peak_R[:, None]) / temperature).where(is_here_RL, 0.0)
    # One collective for all three.
    whole = torch.cat([total_R[None], weighted_R[None], chosen_RL.t()])
    _all_reduce(whole, dist.ReduceOp.SUM, group)
    total_R, weighted_R = whole[:2]
    log_total_R = total_R.log()
    entropy_R = log_total_R - weighted_R / total_R
    return (whole[2:] - log_total_R).t().contiguous(), peak_R, log_total_R, entropy_R


def _logits_gradient(
    tiles: _Tiles,
    start: int,
    logits_RC: Tensor,
    saved: Sequence[Tensor],
    logprob_grad_RL: Tensor | None,
    entropy_grad_R: Tensor | None,
) -> Tensor:
    """[R, C] in the type of the logits, of the logits before temperature.

    With p the distribution of the logits z after temperature and H its entropy:
    d logprob / d z_v = [v is the label] - p_v, and d H / d z_v = -p_v (log p_v + H).
    """
    peak_R, log_total_R, entropy_R = saved
    if logprob_grad_RL is None:
        logprob_grad_RL = torch.zeros_like(tiles.local_RL, dtype=entropy_R.dtype)
    by_label_RL = logprob_grad_RL / tiles.temperature
    by_label_R = by_label_RL.sum(1)
    # p is exp(shifted) / total: the division goes into factors by row.
    over_total_R = -(-log_total_R).exp()
    if tiles.fused:
        by_entropy_R = None
        if entropy_grad_R is not None:
            by_entropy_R = entropy_grad_R / _by_row(tiles.temperature) * over_total_R
        rows = peak_R, by_label_R, by_label_R * over_total_R, by_entropy_R, entropy_R - log_total_R
        column_R = tiles.local_RL[:, 0] - start
        return _compiled(_gradient_in_one)(logits_RC, column_R, tiles.temperature, *rows)
    shifted_RC = tiles.shifted(logits_RC, peak_R)
    grad_RC = tiles.exp(shifted_RC)
    if entropy_grad_R is None:
        grad_RC *= (by_label_R * over_total_R)[:, None]
    else:
        by_entropy_R = entropy_grad_R / _by_row(tiles.temperature) * over_total_R
        slope_RC = shifted_RC.add_((entropy_R - log_total_R)[:, None]).mul_(by_entropy_R[:, None])
        grad_RC *= slope_RC.add_((by_label_R * over_total_R)[:, None])
    column_RL, is_here_RL = tiles.labels(start, start + logits_RC.size(1))
    grad_RC.scatter_add_(1, column_RL, by_label_RL * is_here_RL)
    return grad_RC.to(logits_RC.dtype)


def _gradient_in_one(
    logits_RC: Tensor,
    column_R: Tensor,
    temperature: float | Tensor,
    peak_R: Tensor,
    by_label_R: Tensor,
    factor_R: Tensor,
    by_entropy_R: Tensor | None,
    offset_R: Tensor,
) -> Tensor:
    shifted_RC = (logits_RC.float() - peak_R[:, None]) / temperature
    factor_RC = factor_R[:, None]
    if by_entropy_R is not None:
        factor_RC = factor_RC + (shifted_RC + offset_R[:, None]) * by_entropy_R[:, None]
    column_C = torch.arange(logits_RC.size(1), device=logits_RC.device)
    is_label_RC = column_C == column_R[:, None]
    grad_RC = shifted_RC.exp() * factor_RC + by_label_R[:, None] * is_label_RC
    return grad_RC.to(logits_RC.dtype)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One pass over a tile's logits, of any number of rows and columns."""
    return torch.compile(function, dynamic=True)


def _all_reduce(values: Tensor, op: Any, group: dist.ProcessGroup | None) -> None:
    if group is not None and group.size() > 1:
        dist.all_reduce(values, op=op, group=group)
