"""Settings and spec of `distill`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Self

from pydantic import Field, PositiveInt

from engines.sglang.spec import FleetSpec
from engines.types import Split
from infra.config import Config, Count, PerStep
from tasks.domain import AnswersProblems, ScoredDomain
from tasks.nothink import NothinkShare, unknown_domains
from tasks.path_context import Place

COUNTS_FILE = "counts.json"


class DistillSettings(Config):
    problems: Count = 2000
    """problems per domain"""
    samples: PerStep = 1
    """rollouts per problem"""
    temperature: float = Field(default=1.0, gt=0)
    min_tokens: PositiveInt = 1
    """shorter answers are dropped"""
    min_outcome: float = Field(default=1.0, ge=0, le=1)
    """rollouts with a lower outcome are dropped as wrong"""
    near_duplicate: float = Field(default=0.95, gt=0, le=1)
    """MinHash Jaccard similarity above which a later sample is a duplicate"""
    nothink_share: NothinkShare = Field(default=0.0, exclude_if=lambda share: not share)
    """share of the problems that ask for a thought which are answered with thinking off: one
    number, or one by domain, e.g. `{reasoning: 0.25}`"""
    fleet: FleetSpec = FleetSpec()


class DistillSpec(AnswersProblems):
    """Inputs: one model by each domain's name. Artifact: `data.parquet` and `counts.json`."""

    kind: ClassVar[str] = "distill"
    makes = "data"
    settings: DistillSettings
    domains: list[ScoredDomain] = Field(min_length=1)
    start: int = Field(default=0, ge=0)
    """position of each domain's first problem: a later stage takes problems that none had"""

    @classmethod
    def in_path(cls, settings: DistillSettings, place: Place) -> tuple[Self, dict[str, str]]:
        """The experts' answers in the unified model's path; else those of the model before it."""
        domains = [ScoredDomain.of(domain) for domain in place.with_problems()]
        spec = cls(seed=place.seed, settings=settings, domains=domains, start=place.start)
        own = {domain.name: place.model for domain in place.domains}
        return spec, dict(place.experts or own) | place.admitted_problems("distill")

    def problems(self) -> Iterator[str]:
        names = [domain.name for domain in self.domains]
        yield from unknown_domains(self.settings.nothink_share, names)

    @property
    def drawn(self) -> Mapping[Split, int]:
        return {"distill": self.settings.problems}

    @property
    def may_keep_worse_answers(self) -> bool:
        return self.settings.samples > 1 and self.settings.min_outcome < 1

    @property
    def most_problems(self) -> int:
        return self.settings.problems
