"""Settings of the `files` curriculum."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    field_validator,
    model_validator,
)

from curricula.rows.conversation import Layout
from infra.config import RESULT_NEUTRAL, Config, one_or_more, require_comparable

Share = Annotated[float, Field(ge=0, le=1)]


class PromptColumns(Config):
    """Names of the columns of a file. A row that lacks a column named here is a bad row. `a.b` is
    the field b of a column of objects; `a+b` are two texts, one below the other."""

    prompt: str = ""
    """a text, or a list of messages; empty: the first that a row has of `prompt`, `question`,
    `problem`, `messages`, `conversations`, `conversation`, `instruction` (with `input` or
    `context`), `query`, `input`, `inputs`"""
    reference: str = ""
    """what the reward compares with; empty: the first that a row has of `reference`, `answer`,
    `ground_truth`, `target`, `label`, `expected_answer`, `final_answer`,
    `reward_model.ground_truth`, or nothing; for the reward `code` its tests: empty: `tests`,
    `test_list`, `test`, `test_cases`, `input_output`, `public_tests` and its like, or the same;
    for `constraints`: empty: `constraints`, `instruction_id_list` with `kwargs`, or the same"""
    id: str = ""
    """a text or a number that no other row of the source has; empty: the prompt's checksum"""
    system: str = ""
    """text of a system message that comes first; empty: `system`, `system_prompt` or
    `system_message`, where a row has it"""
    tools: str = ""
    """a list of functions; empty: `tools`, where a row has it"""
    solution: str = ""
    """a worked answer, to show the model; empty: the reference itself, where it is a text or a
    number"""
    metadata: list[str] = Field(default_factory=list)
    """columns that go into the problem's `metadata`, for your reward; `source` is there already"""

    @field_validator("metadata")
    @classmethod
    def _leave_the_source(cls, names: list[str]) -> list[str]:
        if "source" in names:
            raise ValueError(
                "the metadata's `source` is the name of the row's source; rename the column"
            )
        return names


class PromptSource(Config):
    """Files whose rows are read and judged alike."""

    name: str = Field(default="data", pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """what rewards and reports call it"""
    files: list[str] = Field(min_length=1)
    """JSONL, JSON arrays, CSV or Parquet, or folders of one of them: paths relative to the recipe's
    file, any fsspec URLs, patterns; FOLDER/SPLIT where a folder has splits"""
    format: Layout = "auto"
    """how a row holds messages; auto: what they look like"""
    columns: PromptColumns = PromptColumns()
    """names of the columns, where they are not the usual ones"""
    needs: list[str] = Field(default_factory=list)
    """fields of its reference that a row must have, or it is a bad row; what the domain's built-in
    rewards read is among them"""
    checks: dict[str, str] = Field(default_factory=dict, exclude_if=lambda checks: not checks)
    """functions `module:attribute` that are called with a field of each reference, by its name, and
    raise InputError for what makes the row a bad one; those of built-in rewards are among them"""
    reference_pattern: str = ""
    """regular expression whose last match in the reference's text counts, its group 1 if it has
    one, e.g. `#### (.+)`; empty: the whole text, or what follows its last `####` where that is
    its last line"""
    system: str = ""
    """text of a system message, for rows without one"""
    instruction: str = ""
    """text that follows the last message of the user, after an empty line"""
    split: Literal["auto", "train", "heldout"] = "auto"
    """auto: each row's content decides, by the shares; train: none is held out; heldout: all are"""
    weight: PositiveFloat = 1.0
    """share of the problems, relative to the weights of the other sources"""
    max_bad_share: Annotated[Share, RESULT_NEUTRAL] = 0.01
    """most rows that may be left out as bad, of those read (of 1,000 at least, or of all where
    there are fewer); with more the stage stops and names the first"""

    @field_validator("reference_pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        if groups > 1:
            raise ValueError(f"has {groups} groups; one, or none, says what counts")
        return pattern


class Shares(Config):
    """Shares of the rows by split; `rl` gets the rest. A row stays in its split when others are
    added or removed."""

    heldout: Share = 0.1
    """for evaluation; never trained on"""
    distill: Share = 0.0
    """prompts of a `distill` stage"""
    sft: Share = 0.0
    """solved rows for an `sft` stage without files of its own"""

    @model_validator(mode="after")
    def _leave_no_less_than_nothing(self) -> Shares:
        total = self.heldout + self.distill + self.sft
        if total > 1 + 1e-9:
            raise ValueError(f"heldout, distill and sft are {total:g} together; allowed: at most 1")
        return self


class PromptFiles(Config):
    """Options of the curriculum `files`."""

    sources: Annotated[list[PromptSource], BeforeValidator(one_or_more)] = Field(min_length=1)
    """one source, or a list of them that are mixed by their weights"""
    shares: Shares = Shares()
    """shares of the rows of `split: auto` by split"""
    thinking: bool | None = None
    """whether a thought is asked for, where a row does not say it (`enable_thinking: true`); left
    out: off, unless the model's chat template always opens one; a template without a switch leaves
    it to the model"""
    decontaminate: NonNegativeInt = 0
    """n: rows that share n words in a row with a held-out one are not trained on; 0: only rows with
    the same prompt are left out"""

    @model_validator(mode="after")
    def _names_differ(self) -> PromptFiles:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"two sources have one name ({', '.join(names)}); give each its own")
        require_comparable(source.weight for source in self.sources)
        return self
