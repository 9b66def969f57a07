"""Settings and spec of `reward`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, PositiveInt

from engines.algorithms.reward_losses import BradleyTerry, RewardLoss
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps, one_or_more
from tasks.message_files.spec import LearnsFromRows
from tasks.path_context import Place
from tasks.preference.spec import PreferenceFiles, preferences_at

if TYPE_CHECKING:
    from tasks.message_files.render_rows import Renderer

HELD_OUT_FILE = "held_out.json"
"""what the artifact says of held-out pairs: `tasks.reward.held_out`"""


class RewardFiles(PreferenceFiles):
    """One source of preferences for a reward model."""

    def renderer(self, of_model: Renderer) -> Renderer:
        from tasks.message_files.render_rows import WithoutThoughts

        return WithoutThoughts(of_model.chat, of_model.max_tokens)


RewardData = Annotated[
    list[RewardFiles] | None, Field(default=None, min_length=1), BeforeValidator(one_or_more)
]


class RewardSettings(Config):
    steps: Steps
    batch_size: PerStep = 16
    """pairs per optimizer step; or lists, or single answers, as the loss has it"""
    loss: RewardLoss = BradleyTerry()
    """how a preference is learned: bradley-terry (pairs), plackett-luce (lists), binary (good and
    bad answers) or regression (scores), by its name or with settings"""
    held_out: float = Field(default=0.05, ge=0, lt=1)
    """share of the prompts whose rows are not trained on; the finished model judges these"""
    data: RewardData
    """your own files of preferences: one source, or a list of them; left out: of each problem the
    best and the worst answer of the `distill` before it. Thoughts are left out"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""


class RewardSpec(LearnsFromRows):
    """Inputs: `model`, whose trunk it is, and `data` (the answers of a `distill`) unless
    `settings.data` is set. Artifact: a sequence classifier; the path goes on with
    the model before it."""

    kind: ClassVar[str] = "reward"
    settings: RewardSettings

    @classmethod
    def in_path(cls, settings: RewardSettings, place: Place) -> tuple[Self, dict[str, str]]:
        return cls(seed=place.seed, settings=settings), preferences_at(settings.data, place)

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("reward",)
