"""How many weights one rank of a layout holds."""

from __future__ import annotations

from dataclasses import dataclass

from engines.megatron.spec import Parallel
from engines.memory.model_size import ModelSize


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Of one rank."""

    dense: int
    """all but the routed experts'; every data-parallel rank has the same ones"""
    experts: int

    @property
    def all(self) -> int:
        return self.dense + self.experts


def layers_of(size: ModelSize, layout: Parallel) -> int:
    """Layers of one pipeline stage; of the largest, where they are not even."""
    return -(-size.num_layers // layout.pp)


def rank_weights(size: ModelSize, layout: Parallel, stage: int) -> RankWeights:
    """Of a rank of pipeline stage `stage`.

    The first stage has the embedding, the last one the output layer and the last norm. Where the
    two are tied and lie on different stages, both hold them.
    """
    share = layers_of(size, layout) / size.num_layers
    is_first, is_last = stage == 0, stage == layout.pp - 1
    tops = is_first + (is_last and not size.has_value_head and not (is_first and size.is_tied))
    dense = share * (size.split_weights / layout.tp + size.whole_weights)
    dense += tops * size.vocab * size.hidden / layout.tp
    if is_last:
        dense += size.hidden + (size.hidden + 1 if size.has_value_head else 0)
    experts = share * size.expert_weights / (layout.tp * layout.ep)
    return RankWeights(round(dense), round(experts))
