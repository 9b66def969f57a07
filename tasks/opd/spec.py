"""Settings and spec of `opd`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field

from engines.algorithms.spec import Algorithm
from engines.megatron.spec import Optimizer, Role
from engines.types import Split
from infra.config import RESULT_NEUTRAL, PerStep
from infra.errors import InputError
from tasks.domain import Domain
from tasks.path_context import Place
from tasks.policy import PolicySettings
from tasks.served.served_roles import ServedTeacher
from tasks.stage import StageSpec

STUDENT = "model"


class OpdSettings(PolicySettings):
    teachers: Annotated[dict[str, str], RESULT_NEUTRAL] = Field(default_factory=dict)
    """by domain, the model that scores its samples: a stage before this one, e.g. `reasoning-rl`,
    or a folder (a path with a `/`, a URL, `hf:org/name`). Left out: in `unified.path` the expert
    of the domain"""
    served_teachers: dict[str, ServedTeacher] = Field(default_factory=dict)
    """by domain, one behind servers, of any size"""
    problems_per_step: PerStep = 64
    group_size: PerStep = 1
    """rollouts per problem; they are not compared, so more problems help more"""
    algorithm: Algorithm = Field(
        default=Algorithm(preset="opd"), json_schema_extra={"default": {"preset": "opd"}}
    )
    """`{preset: opd, ...}`: its advantage must be distillation, or your own function"""


class OpdSpec(StageSpec):
    """Inputs: the student as `model`, and one teacher by each domain's name."""

    kind: ClassVar[str] = "opd"
    makes = "model"
    settings: OpdSettings
    domains: list[Domain] = Field(min_length=1)
    """problems of a step are drawn from them in turn"""
    start: int = Field(default=0, ge=0)
    """position of each domain's first problem: a later stage takes problems that none had"""

    @classmethod
    def in_path(cls, settings: OpdSettings, place: Place) -> tuple[Self, dict[str, str]]:
        spec = cls(
            seed=place.seed, settings=settings, domains=place.with_problems(), start=place.start
        )
        served = settings.served_teachers
        teachers = {**place.experts, **settings.teachers}
        names = [domain.name for domain in spec.domains]
        if unknown := [name for name in (*settings.teachers, *served) if name not in names]:
            field = "teachers" if unknown[0] in settings.teachers else "served_teachers"
            raise InputError(
                f"{field}.{unknown[0]}: its path has no such domain; it has {', '.join(names)}"
            )
        if lacking := [name for name in names if name not in (*teachers, *served)]:
            raise InputError(
                f"it has no teacher for {', '.join(lacking)}: write `teachers: {{{lacking[0]}:"
                " STAGE}`, a stage before it or a model's folder; only `unified.path` has the"
                " experts as teachers by itself"
            )
        if same := [name for name in served if served[name].model == place.model]:
            raise InputError(
                f"served_teachers.{same[0]}.model: {place.model} is the student itself; name"
                " another model"
            )
        in_ranks = {name: teachers[name] for name in names if name not in served}
        inputs = {STUDENT: place.model, **in_ranks}
        return spec, inputs | place.admitted_problems("rl")

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        updates = self.settings.steps * self.settings.algorithm.mini_batches
        yield "optimizer", self.settings.optimizer, updates

    @property
    def drawn(self) -> Mapping[Split, int]:
        return self.settings.drawn

    @property
    def most_problems(self) -> int:
        return self.settings.steps * self.settings.problems_per_step

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy",)

    @property
    def sampled_domains(self) -> Sequence[Domain]:
        return self.domains

    @property
    def policy(self) -> PolicySettings:
        return self.settings

    @property
    def has_teachers(self) -> bool:
        return True

    @property
    def served_teachers(self) -> Mapping[str, ServedTeacher]:
        return self.settings.served_teachers

    def problems(self) -> Iterator[str]:
        served, algorithm = self.settings.served_teachers, self.settings.algorithm
        for name in served:
            if name in self.settings.teachers:
                yield f"served_teachers.{name}: `teachers` has one of this domain too; keep one"
        if served and algorithm.temperature != 1:
            yield (
                "served_teachers: servers give logprobs at temperature 1, and samples are drawn at"
                f" {algorithm.temperature:g}; set algorithm.temperature to 1, or use `teachers`"
            )
        if served and algorithm.compared_tokens:
            yield (
                "served_teachers: give logprobs of sampled tokens only, and the loss divergence"
                " compares others too; use `teachers`, or `algorithm: {preset: opd}`"
            )
