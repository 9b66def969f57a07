"""Settings and spec of `mid_training`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from curricula.rows.conversation import Columns, Conversation
from engines.families.common.model_config import positive_int, with_positions
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps, one_or_more, require_comparable
from infra.errors import InputError
from tasks.message_files.spec import LearnsFromRows, MessageFiles

if TYPE_CHECKING:
    from pathlib import Path

    from tasks.message_files.render_rows import Renderer
    from tasks.mid_training.packed_stream import PackedStream

Speaker: TypeAlias = Literal["system", "user", "assistant", "tool"]


class TextFiles(MessageFiles):
    """One source of texts: documents, or conversations and agents' trajectories, written by the
    model's chat template."""

    text: str | None = "text"
    """column that holds a row's document; null: rows are conversations, which `format` and
    `columns` say how to read"""
    roles: list[Speaker] | None = Field(default=None, min_length=1)
    """whose messages of conversations the loss is taken on, the assistant's among them; null: every
    token, as of documents"""
    weight: PositiveFloat = 1.0
    """share of the tokens, relative to the weights of the other sources"""

    @model_validator(mode="after")
    def _settings_of_its_rows(self) -> Self:
        if self.text is None:
            if self.roles is not None and "assistant" not in self.roles:
                raise ValueError(
                    "roles: lacks `assistant`, whose turn ends a conversation; add it, or leave"
                    " `roles` out to train on every token"
                )
            return self
        if not self.text.strip():
            raise ValueError("text: names no column; write one, or null for conversations")
        for name, is_written in (
            ("roles", self.roles is not None),
            ("columns", self.columns != Columns()),
            ("format", self.format != "auto"),
        ):
            if is_written:
                raise ValueError(
                    f"{name}: is of conversations, and these rows are documents; leave it out, or"
                    " write `text: null`"
                )
        return self

    def conversations(self, row: Mapping[str, Any]) -> Sequence[Conversation]:
        from tasks.mid_training.packed_stream import read_document

        return super().conversations(row) if self.text is None else [read_document(row, self.text)]

    def renderer(self, of_model: Renderer) -> Renderer:
        from tasks.mid_training.packed_stream import TextRenderer

        return TextRenderer(of_model.chat, self.roles)


class RopeChange(Config):
    """How the model gets more positions. Its `config.json` says so from then on."""

    positions: PositiveInt
    """that it has then"""
    theta: PositiveFloat | None = None
    """new base of its rotary angles, larger than its own; null: its own"""
    yarn: bool = False
    """whether its slow rotations are stretched by YaRN, as much as the positions grow"""

    @model_validator(mode="after")
    def _says_how(self) -> Self:
        if self.theta is None and not self.yarn:
            raise ValueError("rope: says nothing of how; write `theta`, or `yarn: true`, or both")
        return self

    def of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Raises InputError."""
        try:
            return with_positions(config, self.positions, theta=self.theta, yarn=self.yarn)
        except InputError as error:
            raise InputError(f"rope.{error}") from None


class MidTrainingSettings(Config):
    steps: Steps
    sequence_length: Annotated[int, Field(ge=2)] = 4096
    """tokens of a packed sequence: documents are laid end to end in it, and do not see each other.
    A longer document is cut into pieces of this length, and no other is cut"""
    batch_size: PerStep = 16
    """packed sequences per optimizer step"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    data: Annotated[list[TextFiles], BeforeValidator(one_or_more)] = Field(min_length=1)
    """your own files: one source, or a list of them that are mixed by their weights"""
    rope: RopeChange | None = None
    """more positions for the model, before the first step; null: those that it has"""
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""

    @field_validator("data")
    @classmethod
    def _weights_are_comparable(cls, data: list[TextFiles]) -> list[TextFiles]:
        require_comparable(source.weight for source in data)
        return data

    def config_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of the model that this makes of one with such a `config.json`. Raises
        InputError for more positions than it can have, and for sequences longer than these."""
        made = dict(config) if self.rope is None else self.rope.of(config)
        positions = positive_int(made, "max_position_embeddings")
        if self.sequence_length <= positions:
            return made
        raise InputError(
            f"sequence_length: {self.sequence_length} is more than the {positions} positions that"
            " the model has; lower it, or give the model more by `rope: {positions: ..., theta:"
            " ...}` or `rope: {positions: ..., yarn: true}`"
        )

    def packed(self, renderer: Renderer, seed: int, scratch: Path) -> PackedStream:
        """Return the files as sequences. Raises InputError for files without a row, and what
        opening them raises."""
        from tasks.mid_training.packed_stream import PackedStream

        return PackedStream(self.data, renderer, seed, scratch, self.sequence_length)

    @property
    def step_tokens(self) -> int:
        """Most of one optimizer step."""
        return self.batch_size * self.sequence_length


class MidTrainingSpec(LearnsFromRows):
    """Input: `model`."""

    kind: ClassVar[str] = "mid_training"
    makes = "model"
    settings: MidTrainingSettings

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("sft",)
