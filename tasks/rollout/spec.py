"""Settings and spec of `rollout`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field

from engines.sglang.spec import FleetSpec
from engines.types import Split
from infra.config import Config, Count, PerStep
from tasks.domain import AnswersProblems, Domain
from tasks.path_context import Place


class RolloutSettings(Config):
    problems: Count = 256
    """problems per domain"""
    group_size: PerStep = 8
    """rollouts per problem"""
    temperature: float = Field(default=1.0, gt=0)
    fleet: FleetSpec = FleetSpec()


class RolloutSpec(AnswersProblems):
    """Input: `model`. Artifact: all groups, judged, for `offline`; some to browse."""

    kind: ClassVar[str] = "rollout"
    makes = "rollouts"
    settings: RolloutSettings
    domains: list[Domain] = Field(min_length=1)
    start: int = Field(default=0, ge=0)
    """position of each domain's first problem: a later stage takes problems that none had"""

    @classmethod
    def in_path(cls, settings: RolloutSettings, place: Place) -> tuple[Self, dict[str, str]]:
        spec = cls(
            seed=place.seed, settings=settings, domains=place.with_problems(), start=place.start
        )
        return spec, {"model": place.model, **place.admitted_problems("rl")}

    @property
    def drawn(self) -> Mapping[Split, int]:
        return {"rl": self.settings.problems}

    @property
    def most_problems(self) -> int:
        return self.settings.problems
