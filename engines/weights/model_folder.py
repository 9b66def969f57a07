"""The weights of an HF folder, to push as a trainer of one rank would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines.families.common.tensors import INDEX, SINGLE, Size
from engines.weights.buckets import BUCKET_BYTES, TrainedWeights
from infra.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A `Weight` that is one whole tensor of a file."""

    name: str
    local: Tensor

    @property
    def tensors(self) -> Sequence[tuple[str, Size]]:
        return [(self.name, tuple(self.local.shape))]

    def gives(self, index: int, to: int) -> bool:
        return False

    def place(self, shard: Tensor, index: int, whole: Sequence[Tensor]) -> None:
        whole[0].copy_(shard)


def folder_weights(folder: Path, bucket_bytes: int = BUCKET_BYTES) -> TrainedWeights:
    """All tensors of a local folder, mapped and not read until they are packed.

    Raises InputError if a safetensors file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: list[WholeTensor] = []
    for name in _files(folder):
        try:
            stored = load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{folder / name} cannot be read ({error}); copy the model folder again"
            ) from error
        weights += [WholeTensor(tensor, stored[tensor]) for tensor in sorted(stored)]
    return TrainedWeights(weights, bucket_bytes=bucket_bytes)


def _files(folder: Path) -> list[str]:
    """Names of the files with weights, in order. Raises InputError."""
    index = folder / INDEX
    if not index.exists():
        if (folder / SINGLE).exists():
            return [SINGLE]
        raise InputError(f"{folder} has neither {SINGLE} nor {INDEX}; give an HF model folder")
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{index} has no `weight_map` ({error}); copy it again") from error
