"""How the weights of two model folders differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engines.megatron.hf.folder import HfWeights


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """Example: WeightDifference(tensors=86, differing=("model.norm.weight",), largest=1.2e-7)"""

    tensors: int
    """in either folder"""
    differing: tuple[str, ...]
    """names of those that differ in a bit, or are in one folder alone"""
    largest: float
    """distance of two values; 0 where none differs, infinite where two cannot be compared"""


def weight_difference(one: Path, other: Path) -> WeightDifference:
    """Compare two HF folders tensor by tensor. Raises InputError for one that lacks its weights."""
    first, second = HfWeights(one), HfWeights(other)
    names = sorted({*first.file_of, *second.file_of})
    differing: list[str] = []
    largest = 0.0
    for name in names:
        if name not in first.file_of or name not in second.file_of:
            distance = math.inf
        else:
            a, b = first.read(name), second.read(name)
            if _same_bits(a, b):
                continue
            distance = _distance(a, b)
        differing.append(name)
        largest = max(largest, distance)
    return WeightDifference(len(names), tuple(differing), largest)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return math.inf
    gap = float((a.double() - b.double()).abs().max())
    return math.inf if math.isnan(gap) else gap
