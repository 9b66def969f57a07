"""Settings of a user's own files of messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveFloat

from curricula.rows.conversation import Columns, Conversation, Layout
from engines.megatron.spec import Optimizer, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config
from tasks.stage import StageSpec

if TYPE_CHECKING:
    from tasks.message_files.render_rows import Renderer


class RowFiles(Config):
    """One source of rows that hold conversations; a subclass says how."""

    files: list[str] = Field(min_length=1)
    """JSONL, JSON arrays, CSV or Parquet, or folders of one of them: paths relative to the recipe's
    file, any fsspec URLs, patterns (`chats/*.jsonl`); FOLDER/SPLIT where a folder has splits"""
    format: Layout = "auto"
    """how a row holds its messages; auto: what its messages look like"""
    max_bad_share: Annotated[float, Field(ge=0, le=1), RESULT_NEUTRAL] = 0.01
    """most rows that may be left out, of those that were read (of 1,000 at least, or of all where
    there are fewer); with more the stage stops and names the first"""

    def conversations(self, row: Mapping[str, Any]) -> Sequence[Conversation]:
        """Return what a row says. Raises BadRow."""
        raise NotImplementedError

    def renderer(self, of_model: Renderer) -> Renderer:
        """Return what makes tokens of its rows, for a model whose conversations another renders."""
        return of_model


class MessageFiles(RowFiles):
    """One source of conversations to imitate."""

    columns: Columns = Columns()
    """names of the columns, where they are not the usual ones"""
    weight: PositiveFloat = 1.0
    """share of the sequences, relative to the weights of the other sources"""

    def conversations(self, row: Mapping[str, Any]) -> Sequence[Conversation]:
        from curricula.rows.layouts import read_row

        return [read_row(row, self.columns, self.format)]


class LearnsFromRows(StageSpec):
    """A stage that trains with one optimizer, on rows of files or of a dataset before it."""

    settings: Any

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        yield "optimizer", self.settings.optimizer, self.settings.steps

    @property
    def message_files(self) -> Sequence[RowFiles]:
        return self.settings.data or ()
