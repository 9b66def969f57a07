"""Settings and spec of `sft`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from engines.megatron.ranks.roles import Role
from engines.megatron.spec import Optimizer, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, Count, PerStep, Steps
from tasks.domain import CurriculumSpec
from tasks.stage import StageSpec


class SftSettings(Config):
    steps: Steps
    batch_size: PerStep = 16
    """sequences per optimizer step"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    demonstrations: Count = 2000
    """solved problems drawn from the curriculum (not used with a dataset)"""
    nothink_share: float = Field(default=0.0, ge=0, le=1)
    """share of thinking samples repeated with the thinking removed (hybrid models)"""
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""


class SftSpec(StageSpec):
    """Inputs: `model`, and `data` (a distilled dataset) unless `curriculum` is set."""

    kind: ClassVar[str] = "sft"
    settings: SftSettings
    curriculum: CurriculumSpec | None = None
    """the curriculum to draw demonstrations from; None: train on the `data` input"""

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("sft",)

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer
