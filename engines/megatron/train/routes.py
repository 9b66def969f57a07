"""Routing replay: the experts that one pass chose for each token are taken again by a later one.

    engine's experts, if rollouts have them ─▶ known of some tokens
    old logprobs ─▶ routers choose those of the others ─▶ noted by token ─▶ told to all ranks
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
from engines.types import Experts
from infra.errors import TrainingStopped

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
    experts_LPK: Tensor
    is_known_P: Tensor
    """whether they are to be taken; else routers choose"""
    chosen: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[P, K] by layer, in a pass without gradient"""


class Routes:
    """The experts of a step's tokens, in the fewest bytes that hold an expert's number."""

    def __init__(
        self, num_tokens: int, layers: Sequence[int], num_layers: int, mixture: Mixture
    ) -> None:
        """`layers`: the numbers of the L, among those of the whole model."""
        kind = np.uint8 if mixture.num_experts <= 256 else np.int16
        self.experts_TLK = np.zeros((num_tokens, len(layers), mixture.per_token), kind)
        self.known_T = np.zeros(num_tokens, np.bool_)
        self._layers, self._num_layers, self._mixture = list(layers), num_layers, mixture

    def take(self, first: int, said: Experts) -> None:
        """Know what an engine said of the tokens from place `first` on. Raises TrainingStopped for
        what no router of this model can have chosen."""
        per_token, count = self._mixture.per_token, self._mixture.num_experts
        if said.shape[1] != self._num_layers * per_token:
            raise TrainingStopped(
                f"an engine said {said.shape[1]} experts of each token; the model has"
                f" {self._num_layers} layers, and {per_token} experts a token in each"
            )
        known = np.flatnonzero(said.any(1))
        of_layers = said[known].reshape(len(known), self._num_layers, per_token)
        numbers = np.sort(of_layers[:, self._layers])
        is_one = (numbers > 0) & (numbers <= count)
        if not is_one.all() or (numbers[..., 1:] == numbers[..., :-1]).any():
            raise TrainingStopped(
                f"an engine did not say {per_token} different experts, from 0 to {count - 1}, of"
                " each token and layer"
            )
        self.experts_TLK[first + known] = numbers - 1
        self.known_T[first + known] = True

    def of_pack(
        self, places: NDArray[np.int64], is_padding: NDArray[np.bool_], layout: Layout
    ) -> PackRoutes:
        """Return the routes of a pack whose tokens have these places. With sequence parallelism the
        routers of a tensor-parallel rank see its run of them."""
        ranks, rank = layout.parallel.tp, layout.tp_rank
        own, its_padding = np.split(places, ranks)[rank], np.split(is_padding, ranks)[rank]
        experts_LPK = np.ascontiguousarray(self.experts_TLK[own].transpose(1, 0, 2))
        is_known = torch.from_numpy(self.known_T[own]).to(device.device())
        return PackRoutes(
            own, its_padding, torch.from_numpy(experts_LPK).to(device.device()), is_known
        )

    def note(self, packs: Sequence[PackRoutes], layout: Layout) -> None:
        """Know what routers took or chose on all ranks of this stage, which take part; nothing if
        all was known. Each token passed one of the ranks, and elsewhere its experts are zeros."""
        if self.known_T.all():
            return
        self.experts_TLK[:] = 0
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
        self.known_T[:] = True


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
        best, experts = default_compute_topk(scores, topk, num_groups, group_topk)
        if (pack := self.pack) is None:
            return best, experts
        known = pack.experts_LPK[self.layer].long()
        experts = torch.where(pack.is_known_P[:, None], known, experts)
        if not torch.is_grad_enabled():
            pack.chosen[self.layer] = experts.short()
        return scores.gather(1, experts), experts
