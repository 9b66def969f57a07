"""Settings and spec of `preference`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PositiveInt

from curricula.rows.conversation import Conversation
from curricula.rows.pairs import Judged, PairColumns
from engines.algorithms.preference_losses import Dpo, PreferenceLoss
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps
from tasks.message_files.spec import RowFiles
from tasks.stage import StageSpec


class PreferenceFiles(RowFiles):
    """One source of preferences: pairs, ranked lists, or answers with verdicts."""

    columns: PairColumns = PairColumns()
    """names of the columns, where they are not the usual ones"""

    def judged(self, row: Mapping[str, Any]) -> Judged:
        """Raises BadRow."""
        from curricula.rows.pairs import read_judged

        return read_judged(row, self.columns, self.format)

    def conversations(self, row: Mapping[str, Any]) -> Sequence[Conversation]:
        return self.judged(row).answers


def _listed(data: Any) -> Any:
    """One source is a list of one."""
    return [data] if isinstance(data, dict | PreferenceFiles) else data


PreferenceData = Annotated[list[PreferenceFiles], Field(min_length=1), BeforeValidator(_listed)]


class PreferenceSettings(Config):
    steps: Steps
    batch_size: PerStep = 16
    """pairs per optimizer step; of `kto`, answers"""
    loss: PreferenceLoss = Dpo()
    """how a preference is learned: dpo, ipo, kto, orpo or simpo, by its name or with settings"""
    data: PreferenceData
    """your own files of preferences: one source, or a list of them"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""


class PreferenceSpec(StageSpec):
    """Inputs: `model`, which is also the reference."""

    kind: ClassVar[str] = "preference"
    makes = "model"
    settings: PreferenceSettings

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        yield "optimizer", self.settings.optimizer, self.settings.steps

    @property
    def message_files(self) -> Sequence[RowFiles]:
        return self.settings.data

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("preference",)

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer
