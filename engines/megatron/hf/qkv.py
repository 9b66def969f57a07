"""How one matrix of Megatron holds queries, keys and values: by KV group, of each the queries of
its heads, then their output gates if attention has some, then its keys and its values.

HF's matrices hold one part below another, and each head's gate below its queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.families.common.family import GATED_QUERIES, QUERIES, ModelShape


def is_qkv(parts: Sequence[str]) -> bool:
    """Return whether a parameter of these axes is such a matrix, or its bias."""
    return list(parts) in ([QUERIES, "keys", "keys"], [GATED_QUERIES, "keys", "keys"])


def grouped(parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
    """[G, rows of a group, ...] of HF's parts, whole, each with its rows first."""
    queries, *others = [part.reshape(shape.kv_groups, -1, *part.shape[1:]) for part in parts]
    if shape.has_output_gate:
        queries = gates_behind(queries, 1, shape.head_dim)
    return torch.cat([queries, *others], 1)


def ungrouped(by_group: Tensor, shape: ModelShape) -> list[Tensor]:
    """HF's parts of some groups, [G, rows of a group, ...]: each [G, rows of the part, ...]."""
    sizes = [shape.axes[part] // shape.kv_groups for part in (shape.query_axis, "keys", "keys")]
    queries, *others = by_group.split(sizes, 1)
    if shape.has_output_gate:
        by_head = queries.unflatten(1, (2, -1, shape.head_dim)).transpose(1, 2)
        queries = by_head.flatten(1, 3)
    return [queries, *others]


def gates_behind(queries: Tensor, dim: int, head_dim: int) -> Tensor:
    """HF's rows of a group's queries, each head's gate beside it, in Megatron's order."""
    by_head = queries.unflatten(dim, (-1, 2, head_dim)).transpose(dim, dim + 1)
    return by_head.flatten(dim, dim + 2)
