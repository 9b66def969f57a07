"""A stage of your own: a model between the base and the one before it.

Training for one domain costs some of what the base knew elsewhere. Weights between the two often
keep most of both (WiSE-FT, arXiv 2109.01903).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from infra.config import Config
from infra.errors import InputError
from tasks.path_context import Place
from tasks.stage import StageContext, StageSpec, require_inputs

if TYPE_CHECKING:
    from torch import Tensor


class InterpolateSettings(Config):
    share: float = Field(gt=0, lt=1)
    """of the base in each weight: near 0 it is the trained model, near 1 the base"""


class Interpolate(StageSpec):
    """Inputs: the trained `model` and the `base`. Artifact: a model folder."""

    kind: ClassVar[str] = "interpolate"
    makes = "model"
    settings: InterpolateSettings

    @classmethod
    def in_path(cls, settings: InterpolateSettings, place: Place) -> tuple[Self, dict[str, str]]:
        if place.model == place.base:
            raise InputError("nothing is trained before it; put it after `sft` or `rl`")
        return cls(settings=settings), {"model": place.model, "base": place.base}

    def cautions(self) -> Iterator[str]:
        if self.settings.share > 0.9:
            yield f"share: {self.settings.share} leaves almost nothing of what was trained"


async def run(spec: Interpolate, context: StageContext) -> dict[str, float]:
    """Fill `context.out`; the returned numbers are the artifact's metrics."""
    from safetensors.torch import save_file

    require_inputs(context, ["model", "base"])
    model, base = context.inputs["model"], _weights(context.inputs["base"])
    moved = 0.0
    for file in sorted(path for path in model.iterdir() if path.is_file()):
        if file.suffix != ".safetensors":
            shutil.copy(file, context.out / file.name)
            continue
        mixed: dict[str, Tensor] = {}
        for name, trained in _load(file).items():
            if name not in base or base[name].shape != trained.shape:
                raise InputError(f"{name} of {file.name} is not in the base in the same shape")
            between = trained.float().lerp(base[name].float(), spec.settings.share)
            moved = max(moved, float((between - trained.float()).abs().max()))
            mixed[name] = between.to(trained.dtype).contiguous()
        save_file(mixed, context.out / file.name, metadata={"format": "pt"})
    context.reporter.progress(1, 1)
    return {"largest_change": moved}


def _weights(folder: Path) -> dict[str, Tensor]:
    return {
        name: tensor
        for file in folder.glob("*.safetensors")
        for name, tensor in _load(file).items()
    }


def _load(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(file)
