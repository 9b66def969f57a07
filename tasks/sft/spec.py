"""Settings and spec of `sft`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, field_validator

from engines.megatron.spec import Optimizer, Role, TrainerSettings
from engines.types import Split
from infra.config import (
    RESULT_NEUTRAL,
    Config,
    Count,
    PerStep,
    Steps,
    one_or_more,
    require_comparable,
)
from infra.errors import InputError
from tasks.domain import CurriculumSpec
from tasks.message_files.spec import LearnsFromRows, MessageFiles
from tasks.nothink import RepeatedShare, unknown_domains
from tasks.path_context import Place

FILE_SUPPLY = "tasks.sft.supply:open_files"
"""what reads the user's own files: code of those stages alone that train on some"""
ONLY_ADMITTED = "tasks.admitted:restricted"
"""what leaves out the others: code of those stages alone that stand after an `admit`"""


class SftSettings(Config):
    steps: Steps
    batch_size: PerStep = 16
    """sequences per optimizer step"""
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    data: Annotated[list[MessageFiles] | None, BeforeValidator(one_or_more)] = Field(
        default=None, min_length=1
    )
    """your own files of conversations: one source, or a list of them that are mixed by their
    weights; with them neither the curriculum nor a distilled dataset is used"""
    decontaminate: NonNegativeInt = 0
    """n: rows of your own files that share n words in a row with a held-out row of the domain's
    curriculum `files` are left out and counted; 0: none is looked for"""
    demonstrations: Count = 2000
    """solved problems drawn from the curriculum; not with `data`, unused after a `distill`"""
    nothink_share: RepeatedShare = 0.0
    """share of thinking samples repeated with the thinking removed (hybrid models): one number, or
    of a distilled dataset one by domain, e.g. `{reasoning: 0.25}`"""
    aggregation: Literal["token_mean", "sequence_mean"] = Field(
        default="token_mean", exclude_if=lambda mean: mean == "token_mean"
    )
    """token_mean: every trained token of a step counts alike; sequence_mean: every sequence does,
    so that of several domains the one with the longest answers does not outweigh the others"""
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 200
    """steps"""

    @field_validator("data")
    @classmethod
    def _weights_are_comparable(cls, data: list[MessageFiles] | None) -> list[MessageFiles] | None:
        require_comparable(source.weight for source in data or [])
        return data

    @property
    def parts(self) -> tuple[str, ...]:
        return () if self.data is None else (FILE_SUPPLY,)


class SftSpec(LearnsFromRows):
    """Inputs: `model`, and `data` (a distilled dataset) unless `curriculum` or `settings.data` is
    set."""

    kind: ClassVar[str] = "sft"
    makes = "model"
    settings: SftSettings
    curriculum: CurriculumSpec | None = None
    """the curriculum to draw demonstrations from; None: train on `settings.data`, or else on the
    `data` input"""
    only_admitted: bool = False
    """whether demonstrations are of the problems alone that the input of an `admit` holds"""
    held_out: list[CurriculumSpec] = Field(default_factory=list)
    """with `settings.decontaminate`: whose held-out rows must not be trained on"""

    @classmethod
    def in_path(cls, settings: SftSettings, place: Place) -> tuple[Self, dict[str, str]]:
        """Learn on its own files, if it names any; else on the dataset before it, if there is one;
        else on its domain's demonstrations."""
        names, share = [domain.name for domain in place.domains], settings.nothink_share
        if settings.data is None and (unknown := next(unknown_domains(share, names), "")):
            raise InputError(unknown)
        if settings.data is not None or place.data:  # both hold as many rows as they do
            usual = SftSettings.model_fields["demonstrations"].default
            if settings.data is not None and settings.demonstrations != usual:
                raise InputError(
                    "demonstrations: is not used, as the stage trains on its own files in `data`;"
                    " leave one of them out"
                )
            unread = {"demonstrations": usual}
            spec = cls(seed=place.seed, settings=settings.model_copy(update=unread))
            given = {} if settings.data is not None else {"data": place.data}
            if settings.decontaminate:
                spec = spec.model_copy(update={"held_out": _held_out(settings, place)})
            return spec, {"model": place.model, **given}
        if not place.domains:
            raise InputError(
                "it has nothing to train on, as the expert has no `domain`; write one, or name"
                " files of your own in `data`"
            )
        if len(place.domains) > 1:
            raise InputError(
                "it has nothing to train on, as demonstrations are one domain's; put `distill`"
                " before it, or name files of your own in `data`"
            )
        curriculum = place.domains[0].curriculum
        admitted = place.admitted_problems("sft")
        spec = cls(
            seed=place.seed, settings=settings, curriculum=curriculum, only_admitted=bool(admitted)
        )
        return spec, {"model": place.model, **admitted}

    @property
    def parts(self) -> tuple[str, ...]:
        return (*super().parts, *((ONLY_ADMITTED,) if self.only_admitted else ()))

    @property
    def drawn(self) -> Mapping[Split, int]:
        return {} if self.curriculum is None else {"sft": self.settings.demonstrations}

    def problems(self) -> Iterator[str]:
        if self.settings.decontaminate and self.settings.data is None:
            yield "decontaminate: looks at your own files, and `data` names none; leave it out"
        is_of_one = self.settings.data is not None or self.curriculum is not None
        if is_of_one and isinstance(self.settings.nothink_share, dict):
            yield "nothink_share: only a distilled dataset has several domains; write one number"

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("sft",)


def _held_out(settings: SftSettings, place: Place) -> list[CurriculumSpec]:
    found = [d.curriculum for d in place.domains if d.curriculum.name == "files"]
    if settings.data is not None and not found:
        raise InputError(
            "decontaminate: compares with held-out rows of the curriculum `files`, and no domain"
            " here has it; leave it out"
        )
    return found
