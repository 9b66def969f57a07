"""What of a model's shape its memory depends on. Plain numbers: families that the engines do not
train can be described as well."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from engines.families.common.family import ModelShape

_WHOLE = {("hidden",), ("head",)}
"""rows of vectors that every tensor-parallel rank has whole: the norms' weights"""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of weights, and of values that a token makes on its way."""

    num_layers: int
    hidden: int
    queries: int
    """heads x head size"""
    keys: int
    """KV heads x head size"""
    head_dim: int
    ffn: int
    """feed-forward width that one token passes: all experts together that it is sent to"""
    vocab: int
    is_tied: bool
    has_head_norms: bool
    split_weights: int
    """of all layers; tensor-parallel ranks share them out"""
    whole_weights: int
    """of all layers; every tensor-parallel rank has them all"""
    expert_weights: int = 0
    """of all layers' routed experts; expert-parallel ranks share them out as well"""
    experts_per_token: int = 0
    has_value_head: bool = False

    @property
    def num_weights(self) -> int:
        """All of the model's, each once."""
        tops = 1 if self.is_tied or self.has_value_head else 2
        head = self.hidden + 1 if self.has_value_head else 0
        layers = self.split_weights + self.whole_weights + self.expert_weights
        return layers + tops * self.vocab * self.hidden + self.hidden + head


def size_of(shape: ModelShape) -> ModelSize:
    """Of a model that the engines train."""
    axes = shape.axes
    layer = [t for stored in shape.family.tensors.layer.values() for t in stored]
    whole = [t for t in layer if t.columns is None and t.rows in _WHOLE]
    num_whole = sum(prod(t.size(axes)) for t in whole)
    num_all = sum(prod(t.size(axes)) for t in layer)
    return ModelSize(
        num_layers=shape.num_layers,
        hidden=shape.hidden,
        queries=axes["queries"],
        keys=axes["keys"],
        head_dim=shape.head_dim,
        ffn=shape.ffn,
        vocab=shape.vocab,
        is_tied=shape.is_tied,
        has_head_norms=any(t.rows == ("head",) for t in whole),
        split_weights=shape.num_layers * (num_all - num_whole),
        whole_weights=shape.num_layers * num_whole,
        has_value_head=shape.has_value_head,
    )
