"""Settings and spec of `reward`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from engines.algorithms.reward_losses import BradleyTerry, RewardLoss
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps
from tasks.message_files.spec import RowFiles
from tasks.preference.spec import PreferenceData
from tasks.stage import StageSpec

HELD_OUT_FILE = "held_out.json"
"""what the artifact says of held-out pairs: `tasks.reward.held_out`"""


class RewardSettings(Config):
    steps: Steps
    batch_size: PerStep = 16
    """pairs per optimizer step; or lists, or single answers, as the loss has it"""
    loss: RewardLoss = BradleyTerry()
    """how a preference is learned: bradley-terry (pairs), plackett-luce (lists), binary (good and
    bad answers) or regression (scores), by its name or with settings"""
    held_out: float = Field(default=0.05, ge=0, lt=1)
    """share of the rows that are not trained on; the finished model judges them"""
    data: PreferenceData
    """your own files of preferences: one source, or a list of them"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""


class RewardSpec(StageSpec):
    """Inputs: `model`, whose trunk it is. Artifact: a sequence classifier; the path goes on with
    the model before it."""

    kind: ClassVar[str] = "reward"
    settings: RewardSettings

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        yield "optimizer", self.settings.optimizer, self.settings.steps

    @property
    def message_files(self) -> Sequence[RowFiles]:
        return self.settings.data

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("reward",)

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer
