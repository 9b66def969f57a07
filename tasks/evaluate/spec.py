"""Settings and spec of `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from engines.sglang.spec import FleetSpec
from engines.types import Split
from infra.config import Config, Count, PerStep
from tasks.domain import AnswersProblems, ScoredDomain

SCORES_FILE = "scores.json"


class EvaluateSettings(Config):
    problems: Count = 128
    """held-out problems per domain, fixed by seed"""
    samples: PerStep = 4
    """samples per problem at temperature 1 in a model's own domains; with n samples, the best of
    2, 4, ..., n is scored too (pass@k)"""
    samples_elsewhere: PerStep = 1
    """samples per problem in the other domains"""
    fleet: FleetSpec = FleetSpec()


class EvaluateSpec(AnswersProblems):
    """Inputs: models by name. Artifact: `scores.json` and `rollouts.parquet`."""

    kind: ClassVar[str] = "evaluate"
    settings: EvaluateSettings
    domains: list[ScoredDomain] = Field(min_length=1)
    home: dict[str, list[str]]
    """model name -> domains sampled in full, with greedy"""
    nothink: list[str] = Field(default_factory=list)
    """models evaluated once more with thinking off, as NAME-nothink"""

    @property
    def drawn(self) -> Mapping[Split, int]:
        return {"heldout": self.settings.problems}
