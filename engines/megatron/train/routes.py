"""Routing replay: the experts that one pass chose for each token are taken again by a later one.

    old logprobs ─▶ routers choose ─▶ noted by token ─▶ told to all ranks of the stage
    update ─▶ a pack has its tokens' experts ─▶ routers take these, by today's scores

Two experts may be almost as good for a token. Then last bits decide, and two passes over a token
are of two networks, whose ratio says nothing of the policy. Megatron-core's own replay
(`moe_enable_routing_replay`) hands routers what they chose for the micro-batch of the same number.
Here experts belong to tokens: mini-batches are packed in other ways than the pass before them, and
often on other ranks. A router finds them with its pack, also where the backward pass computes a
layer again.

Axes: T tokens of a step, L layers with experts in this rank's pipeline stage, K experts of a token,
P tokens of a pack that this rank's routers see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from engines.families.common.experts import Mixture
from engines.megatron import device
from engines.megatron.parallel import Layout

_MESSAGE = 1 << 26
"""bytes that ranks tell each other at a time"""
Chosen: TypeAlias = tuple[Tensor, Tensor]
"""scores and numbers of each token's experts"""


@dataclass(slots=True)
class PackRoutes:
    """What the routers of one pack take, or what they chose."""

    places: NDArray[np.int64]
    """[P] of the pack's tokens among all T"""
    is_padding: NDArray[np.bool_]
    """[P]; the place is then that of another token"""
    known_LPK: Tensor | None
    """None: routers choose"""
    chosen: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[P, K] by layer"""


class Routes:
    """The experts of a step's tokens, in the fewest bytes that hold an expert's number."""

    def __init__(self, num_tokens: int, num_layers: int, mixture: Mixture) -> None:
        kind = np.uint8 if mixture.num_experts <= 256 else np.int16
        self.experts_TLK = np.zeros((num_tokens, num_layers, mixture.per_token), kind)
        self.is_known = False
        """whether a pass over all tokens was noted"""

    def of_pack(
        self, places: NDArray[np.int64], is_padding: NDArray[np.bool_], layout: Layout
    ) -> PackRoutes:
        """Of a pack whose tokens have these places. With sequence parallelism the routers of a
        tensor-parallel rank see its run of them."""
        ranks, rank = layout.parallel.tp, layout.tp_rank
        own, its_padding = np.split(places, ranks)[rank], np.split(is_padding, ranks)[rank]
        known = None
        if self.is_known:
            experts_LPK = np.ascontiguousarray(self.experts_TLK[own].transpose(1, 0, 2))
            known = torch.from_numpy(experts_LPK).to(device.device())
        return PackRoutes(own, its_padding, known)

    def note(self, packs: Sequence[PackRoutes], layout: Layout) -> None:
        """Know what routers chose on all ranks of this stage, which take part; nothing if it was
        known. Each token passed one of the ranks, and elsewhere its experts are zeros."""
        if self.is_known:
            return
        for pack in packs if self.experts_TLK.size else []:
            chosen_PLK = torch.stack([pack.chosen[layer] for layer in sorted(pack.chosen)], 1)
            is_token = ~pack.is_padding
            self.experts_TLK[pack.places[is_token]] = chosen_PLK.cpu().numpy()[is_token]
        of_bytes = self.experts_TLK.reshape(-1).view(np.uint8)
        for first in range(0, len(of_bytes), _MESSAGE):
            part = of_bytes[first : first + _MESSAGE]
            summed = torch.from_numpy(part).to(device.device())
            dist.all_reduce(summed, group=layout.stage_group)
            part[:] = summed.cpu().numpy()
        self.is_known = True


class Replay:
    """What a layer's router asks for its tokens' experts, in place of Megatron's `RouterReplay`."""

    def __init__(self) -> None:
        self.layer = 0
        """number among those of this stage that have experts"""
        self.pack: PackRoutes | None = None
        """of the pack that is in the layer now; None: the router chooses, and nothing is noted"""

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: Callable[..., Chosen],
    ) -> Chosen:
        """Megatron's name for it. The scores are today's, so that routers learn."""
        pack = self.pack
        if pack is not None and pack.known_LPK is not None:
            experts = pack.known_LPK[self.layer].long()
            return scores.gather(1, experts), experts
        best, experts = default_compute_topk(scores, topk, num_groups, group_topk)
        if pack is not None:
            pack.chosen[self.layer] = experts.short()
        return best, experts
