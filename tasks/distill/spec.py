"""Settings and spec of `distill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, PositiveInt

from engines.sglang.spec import FleetSpec
from infra.config import Config, Count, PerStep
from tasks.domain import ScoredDomain
from tasks.stage import StageSpec

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
    fleet: FleetSpec = FleetSpec()


class DistillSpec(StageSpec):
    """Inputs: one model by each domain's name. Artifact: `data.parquet` and `counts.json`."""

    kind: ClassVar[str] = "distill"
    settings: DistillSettings
    domains: list[ScoredDomain] = Field(min_length=1)
    start: int = Field(default=0, ge=0)
    """position of each domain's first problem: a later round takes problems that none had"""

    @property
    def fleet(self) -> FleetSpec:
        return self.settings.fleet

    @property
    def sampled_domains(self) -> Sequence[ScoredDomain]:
        return self.domains
