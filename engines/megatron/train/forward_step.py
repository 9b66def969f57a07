"""One pack through the model, as Megatron's schedules call it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engines.megatron.train.objectives import Objective
from engines.megatron.train.pack import Pack


def training_step(objective: Objective) -> Any:
    """Megatron's forward step for an objective."""
    return partial(_forward, partial(_loss_of, objective), objective.head)


def scoring_step(head: Mapping[str, Any]) -> Any:
    """The same for what the model's head says first of each token; nothing is learned."""
    return partial(_forward, _score_of, head)


def _forward(
    finish: Any, head: Mapping[str, Any], packs: Iterator[Pack], model: Any
) -> tuple[Tensor, Any]:
    """The model's output for the next pack, and what to do with it on the last stage."""
    pack = next(packs)
    output = model(
        input_ids=pack.input_ids,
        position_ids=None,
        attention_mask=None,
        packed_seq_params=pack,
        **head,
    )
    return output, partial(finish, pack)


def _loss_of(
    objective: Objective, pack: Pack, scores: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    part = objective.part(pack, scores)
    units = torch.tensor(part.units, dtype=torch.int, device=part.loss.device)
    return part.loss, units, (part.sums, part.peaks)


def _score_of(pack: Pack, scores: Tensor, non_loss_data: bool = True) -> Tensor:
    return scores[0]
