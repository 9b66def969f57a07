"""Settings and spec of `reward`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt

from engines.algorithms.reward_losses import BradleyTerry, RewardLoss
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps
from tasks.message_files.spec import RowFiles
from tasks.path_context import Place
from tasks.preference.spec import PreferenceData, preferences_at
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
    """share of the prompts whose rows are not trained on; the finished model judges these"""
    data: PreferenceData
    """your own files of preferences: one source, or a list of them; left out: of each problem the
    best and the worst answer of the `distill` before it"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""


class RewardSpec(StageSpec):
    """Inputs: `model`, whose trunk it is, and `data` (the answers of a `distill`) unless
    `settings.data` is set. Artifact: a sequence classifier; the path goes on with
    the model before it."""

    kind: ClassVar[str] = "reward"
    settings: RewardSettings

    @classmethod
    def in_path(cls, settings: RewardSettings, place: Place) -> tuple[Self, dict[str, str]]:
        return cls(seed=place.seed, settings=settings), preferences_at(settings.data, place)

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        yield "optimizer", self.settings.optimizer, self.settings.steps

    @property
    def message_files(self) -> Sequence[RowFiles]:
        return self.settings.data or ()

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("reward",)

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer
