"""Settings and spec of `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, field_validator

from engines.rollout.protocols import ThoughtBudget
from engines.sglang.spec import FleetSpec
from engines.types import Split
from infra.config import Config, Count, PerStep
from tasks.domain import AnswersProblems, ScoredDomain

SCORES_FILE = "scores.json"


class SamplingSetting(Config):
    """One more way to sample in a model's own domains, scored beside temperature 1 and greedy."""

    temperature: float = Field(default=1.0, gt=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """each token is drawn from the fewest likeliest ones with this much probability together"""
    samples: PerStep = 4
    """samples per problem; with n samples, the best of 2, 4, ..., n is scored too (pass@k)"""

    thought_tokens: PerStep | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    """budget forcing: a thought that is still open after so many tokens of a turn is ended there as
    the chat template ends one, and the answer follows; None: the model ends it"""
    thought_waits: int = Field(default=0, ge=0, le=16, exclude_if=lambda waits: not waits)
    """how often a thought that the model ends is made to go on, with `Wait` in place of its end"""

    @property
    def thought(self) -> ThoughtBudget | None:
        is_free = self.thought_tokens is None and not self.thought_waits
        return None if is_free else ThoughtBudget(self.thought_tokens, self.thought_waits)

    @property
    def name(self) -> str:
        """Return the setting's name in scores, metrics and seeds. Example:
        t0.6-p0.95-think256-wait1"""
        name = f"t{self.temperature}" + (f"-p{self.top_p}" if self.top_p < 1 else "")
        name += f"-think{self.thought_tokens}" if self.thought_tokens is not None else ""
        return name + (f"-wait{self.thought_waits}" if self.thought_waits else "")


class EvaluateSettings(Config):
    problems: Count = 128
    """held-out problems per domain, fixed by seed"""
    samples: PerStep = 4
    """samples per problem at temperature 1 in a model's own domains; with n samples, the best of
    2, 4, ..., n is scored too (pass@k)"""
    samples_elsewhere: PerStep = 1
    """samples per problem in the other domains"""
    sampling: list[SamplingSetting] = Field(
        default_factory=list[SamplingSetting], exclude_if=lambda settings: not settings
    )
    """more ways to sample, e.g. `[{temperature: 0.6, top_p: 0.95, samples: 16}]`"""
    fleet: FleetSpec = FleetSpec()

    @field_validator("sampling")
    @classmethod
    def _ways_differ(cls, settings: list[SamplingSetting]) -> list[SamplingSetting]:
        names = [setting.name for setting in settings]
        if "t1.0" in names:
            raise ValueError(
                "temperature 1 without `top_p` is what `samples` counts; leave it out here, and set"
                " `evaluate.samples`"
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: a way to sample is named twice; write it once")
        return settings


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
