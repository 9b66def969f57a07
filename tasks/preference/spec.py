"""Settings and spec of `preference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, PositiveInt

from curricula.rows.conversation import Conversation
from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import Judged
from engines.algorithms.preference_losses import Dpo, PreferenceLoss
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps, one_or_more
from infra.errors import InputError
from tasks.message_files.spec import LearnsFromRows, RowFiles
from tasks.path_context import Place


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


PreferenceData = Annotated[
    list[PreferenceFiles] | None, Field(default=None, min_length=1), BeforeValidator(one_or_more)
]


_COMPARED = "`samples: 2` or more, `min_outcome: 0` and `near_duplicate: 1`"


def preferences_at(data: Sequence[PreferenceFiles] | None, place: Place) -> dict[str, str]:
    """The inputs of a stage that learns preferences: its own files', or the answers of the
    `distill` before it, which are those of the model that it goes on with. Raises InputError."""
    if data is not None:
        return {"model": place.model}
    if not place.data:
        raise InputError(
            "data: is missing; name your own files of preferences, or put a `distill` before it, "
            f"with {_COMPARED}. Its answers serve until something is trained after it"
        )
    if not place.sampling_model:
        raise InputError(
            "data: is missing; the answers of the `distill` before it are the experts', and"
            " preferences are learned from the model's own: name files of your own"
        )
    if not place.has_worse_answers:
        raise InputError(
            "data: is missing, and the `distill` before it keeps one answer to a problem, or right"
            f" ones only; give it {_COMPARED}"
        )
    return {"model": place.sampling_model, "data": place.data}


class PreferenceSettings(Config):
    steps: Steps
    batch_size: PerStep = 16
    """pairs per optimizer step; of `kto`, answers"""
    loss: PreferenceLoss = Dpo()
    """how a preference is learned: dpo, ipo, kto, orpo or simpo, by its name or with settings"""
    data: PreferenceData
    """your own files of preferences: one source, or a list of them; left out: of each problem the
    best and the worst answer of the `distill` before it"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""


class PreferenceSpec(LearnsFromRows):
    """Inputs: `model`, which is also the reference, and `data` (the answers of a `distill`) unless
    `settings.data` is set."""

    kind: ClassVar[str] = "preference"
    makes = "model"
    settings: PreferenceSettings

    @classmethod
    def in_path(cls, settings: PreferenceSettings, place: Place) -> tuple[Self, dict[str, str]]:
        return cls(seed=place.seed, settings=settings), preferences_at(settings.data, place)

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("preference",)
