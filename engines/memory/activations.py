"""Values that a layer keeps for its backward pass, and what that pass needs beside them.

By the layer of `engines/megatron/layers.py` in Megatron-core's plain spec: what each operation
saves was read off its backward; `tests/programs/bench/memory.py` compares it with real ranks.
All numbers are values of the trainer's type, per token of a rank's micro-batch; tensor-parallel
ranks share all of them out, as they share the sequence as well.
"""

from __future__ import annotations

from engines.megatron.spec import Parallel
from engines.memory.model_size import ModelSize
from engines.memory.recompute import Recompute


def kept_values(size: ModelSize, recompute: Recompute, cp: int) -> float:
    """Of one layer and token, until its backward pass."""
    hidden = size.hidden
    # A norm keeps its normalised input; the linear layer after it keeps the norm's output.
    norms = 2 * hidden
    inputs = 2 * hidden
    mlp = 0 if "mlp" in recompute.modules else mlp_values(size)
    return norms + inputs + attention_values(size, recompute, cp) + size.queries + mlp


def attention_values(size: ModelSize, recompute: Recompute, cp: int) -> float:
    """Of a layer's attention, without its output, which the projection after it keeps."""
    queries, keys = size.queries, size.keys
    head_norms = queries + keys if size.has_head_norms else 0
    projected = queries + 2 * keys
    """queries, keys and values come from one product; a view of it keeps it whole"""
    if "core_attn" in recompute.modules:
        return head_norms + queries + keys + projected
    if cp > 1:
        # A sequence's two chunks r and 2cp-1-r of 2cp see r+1 and 2cp-r chunks of keys and values:
        # together cp + 1/2 times their own length.
        return head_norms + queries + (cp + 0.5) * 2 * keys
    return head_norms + queries + keys + projected


def mlp_values(size: ModelSize) -> float:
    """Of a feed-forward layer without its input: gate and up in one, silu of the gate, up with its
    offset (which is 0, but a sum of its own), their product.

    Each expert of a token takes a copy of the token and gives one back.
    """
    return 5 * size.ffn + 2 * size.experts_per_token * size.hidden


def working_values(size: ModelSize, recompute: Recompute) -> float:
    """The most that the backward pass of one layer makes beside what is kept, per token.

    That is in the feed-forward, where silu and up get their gradients: before them the product's
    gradient takes the product's place. Modules that are computed again have their values, too.
    """
    again = mlp_values(size) if "mlp" in recompute.modules else 0
    return size.hidden + 2 * size.ffn + again


def micro_batches_in_flight(layout: Parallel, stage: int) -> int:
    """Whose values a pipeline stage keeps at once (1F1B), in a step of enough micro-batches."""
    return layout.pp - stage
