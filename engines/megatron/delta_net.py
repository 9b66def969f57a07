"""Gated delta net: a layer's part in place of attention, as Qwen3.5 has it.

    hidden ─▶ queries, keys, values ─▶ a short causal convolution ─▶ silu ─▶ unit queries and keys
           ├▶ gate of the output
           ├▶ how strongly a token writes (beta)
           └▶ how much of the state a token keeps (its decay)

Each head has a state S, a matrix from keys to values that begins as zeros with every sequence. A
token lets it fade, replaces what it holds for its key by its value, as far as beta says, and reads
it by its query. Within a chunk of tokens all replacements are the solution of one triangular
system; only between chunks the state goes step by step.

Sequences of a pack lie side by side here, each from its first token on and padded behind its last:
neither the convolution nor the state of one reaches another. What is made of them is several times
what else a layer keeps for its backward pass, so that pass makes it again, block by block.

Parameters and their places in a checkpoint are Megatron-core's, whose own layer needs
flash-linear-attention, and refuses packs. Axes: T tokens of this rank's pack, P sequences, L tokens
of the longest of them, C tokens of a chunk, N value heads of this rank, K and V numbers of a key
and a value.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import gated_delta_net
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from engines.families.common.family import CHUNK, ModelShape
from engines.megatron.adapters import Column, Row
from engines.megatron.layers import RMSNorm
from engines.megatron.train.pack import Block, Pack

_EPS = 1e-6
"""of the length of a query or key"""


class PackedDeltaNet(GatedDeltaNet):
    """Takes the place of Megatron's attention in a layer."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        shape: ModelShape,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        assert shape.delta is not None
        # Asked for by Megatron's class as it is made; none of its kernels is called here.
        gated_delta_net.HAVE_FLA = True
        super().__init__(
            config,
            GatedDeltaNetSubmodules(Column, _OutputNorm, Row),
            layer_number,
            pg_collection=pg_collection or ProcessGroupCollection.use_mpu_process_groups(["tp"]),
        )
        for shared in (self.conv1d.weight, self.dt_bias, self.A_log):
            shared.partition_dim = 0  # pyrefly: ignore[missing-attribute]
        heads, self.before = shape.delta.value_heads, shape.delta.kernel - 1
        sizes = (2 * self.qk_dim + self.v_dim, self.v_dim, heads, heads)
        self.sizes = [size // self.tp_size for size in sizes]
        """of this rank's products: queries, keys and values; gates; beta; decay"""

    def forward(  # pyrefly: ignore[bad-override]
        self, hidden_states: Tensor, *_: Any, packed_seq_params: Pack, **__: Any
    ) -> tuple[Tensor, None]:
        """[T, 1, H], or this rank's part of the tokens where tensor-parallel ranks share them."""
        made, _bias = self.in_proj(hidden_states)
        mixed, gate, beta, decay = made.squeeze(1).split(self.sizes, 1)
        read_TNV = self._read(mixed, beta, decay, packed_seq_params)
        normed = self.out_norm(read_TNV) * F.silu(gate.float()).view_as(read_TNV)
        output, _bias = self.out_proj(normed.to(made.dtype).flatten(1).unsqueeze(1))
        return output, None

    def _read(self, mixed: Tensor, beta: Tensor, decay: Tensor, pack: Pack) -> Tensor:
        """[T, N, V] of what tokens read from their states."""
        counts = [block.num_queries for block in pack.blocks]
        parts = zip(*(x.split(counts) for x in (mixed, beta, decay)), strict=True)
        read: list[Any] = []
        for number, (given, block) in enumerate(zip(parts, pack.blocks, strict=True)):
            slots = None if number else pack.slots
            of_block = partial(self._block, block=block, slots=slots)
            again = torch.is_grad_enabled()
            read.append(
                tensor_parallel.checkpoint(of_block, False, *given) if again else of_block(*given)
            )
        return torch.cat(read)

    def _block(
        self, mixed: Tensor, beta: Tensor, decay: Tensor, block: Block, slots: Tensor | None
    ) -> Tensor:
        """Read the states of neighbouring sequences, [T of the block, N, V]."""
        sizes = [n // self.tp_size for n in (self.qk_dim, self.qk_dim, self.v_dim)]
        convolved = self._convolved(_side_by_side(mixed, block, slots))
        query, key, value = convolved.split(sizes, -1)
        beta, decay = (_side_by_side(x, block, slots).float() for x in (beta, decay))
        log_decay = -self.A_log.float().exp() * F.softplus(decay + self.dt_bias.float())
        read_PLNV = delta_rule(
            _unit(query.unflatten(-1, (-1, self.key_head_dim))),
            _unit(key.unflatten(-1, (-1, self.key_head_dim))),
            value.unflatten(-1, (-1, self.value_head_dim)).float(),
            log_decay,
            beta.sigmoid(),
        )
        flat = read_PLNV.flatten(0, 1).to(mixed.dtype)
        return flat if slots is None else flat.index_select(0, slots)

    def _convolved(self, mixed_PLD: Tensor) -> Tensor:
        """A token with those just before it in its sequence."""
        before = F.pad(mixed_PLD.transpose(1, 2), (self.before, 0))
        weight = self.conv1d.weight
        return F.silu(F.conv1d(before, weight, groups=len(weight)).transpose(1, 2))


class _OutputNorm(RMSNorm):
    """The norm of what a head reads: its weight is stored as it is, whatever other norms do."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(config, hidden_size, eps)
        self.is_zero_centered = False


class GatedAttention(SelfAttention):
    """Megatron's attention with an output gate, without the compiler that it multiplies with."""

    def _apply_output_gate(self, x: Tensor, gate: Tensor) -> Tensor:  # pyrefly: ignore[bad-override]
        return (x * gate.reshape(x.shape).float().sigmoid()).to(x.dtype)


def delta_rule(
    query_PLMK: Tensor, key_PLMK: Tensor, value_PLNV: Tensor, log_decay: Tensor, beta: Tensor
) -> Tensor:
    """[P, L, N, V] of what tokens read, float32 as all that is given.

    Queries and keys have length 1. M of them go to N = M x shared value heads, neighbours to the
    same one. `log_decay` and `beta` are [P, L, N].
    """
    length, shared = value_PLNV.size(1), value_PLNV.size(2) // key_PLMK.size(2)
    chunk = min(CHUNK, length)
    query, key = (
        _chunked(x.repeat_interleave(shared, 2), chunk)
        for x in (query_PLMK * query_PLMK.size(-1) ** -0.5, key_PLMK)
    )
    value, beta, log_decay = (
        _chunked(x, chunk) for x in (value_PLNV, beta[..., None], log_decay[..., None])
    )
    faded = log_decay.squeeze(-1).double().cumsum(-1)
    """logarithm of what is left, after each token of a chunk, of the state before the chunk; where
    states fade quickly, differences of float32 sums would be wrong by 5e-6"""
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=faded.device).triu(1)
    since = (faded[..., :, None] - faded[..., None, :]).float()
    since = since.masked_fill(later, -torch.inf).exp()
    """what is left after a token of what an earlier one wrote"""
    written = key * beta
    system = (written @ key.mT) * since
    into = faded[..., None].float().exp()
    both = torch.cat([value * beta, written * into], -1)
    solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    new, seen = solved.split([value.size(-1), key.size(-1)], -1)
    """values that the chunk's tokens write if the state before it is zero, and what they would
    write less for a state that is not"""
    among = (query @ key.mT) * since
    from_state = query * into
    to_end = key * (faded[..., -1:] - faded)[..., None].float().exp()
    left = into[..., -1:, :]
    state = key.new_zeros(*key.shape[:2], key.size(-1), value.size(-1))
    read: list[Tensor] = []
    for number in range(key.size(2)):
        wrote = new[:, :, number] - seen[:, :, number] @ state
        read.append(from_state[:, :, number] @ state + among[:, :, number] @ wrote)
        state = state * left[:, :, number] + to_end[:, :, number].mT @ wrote
    return torch.cat(read, 2)[:, :, :length].transpose(1, 2)


def _chunked(x_PLND: Tensor, chunk: int) -> Tensor:
    """[P, N, chunks, C, D], zeros behind the last token: they write nothing."""
    by_head = x_PLND.transpose(1, 2)
    padded = F.pad(by_head, (0, 0, 0, -by_head.size(2) % chunk))
    return padded.unflatten(2, (-1, chunk))


def _unit(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + _EPS)


def _side_by_side(x_TD: Tensor, block: Block, slots: Tensor | None) -> Tensor:
    """[T, D] -> [P, L, D], zeros where a sequence is shorter."""
    if slots is not None:
        places = block.count * block.queries
        x_TD = x_TD.new_zeros(places, x_TD.size(-1)).index_copy(0, slots, x_TD)
    return x_TD.unflatten(0, (block.count, block.queries))
