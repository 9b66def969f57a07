"""Settings and spec of `screen`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from engines.sglang.spec import FleetSpec
from engines.types import Split
from infra.config import Config, Count, PerStep
from tasks.domain import AnswersProblems, ScoredDomain
from tasks.path_context import Place

SCREEN_FILE = "screen.json"
"""by `DOMAIN, SPLIT`: how many problems were tried, kept, and are in each pool"""
PASS_RATES_FILE = "pass-rates.parquet"
Pool = Literal["solved", "moderate", "hard", "never"]
BEYOND_FIRST: tuple[Pool, ...] = ("hard", "never")
"""pools that only more answers than the first tell apart"""


class ScreenSettings(Config):
    """Which problems a model solves sometimes: on those that it solves always, or never, every
    reward of a group is equal, and nothing is learned."""

    problems: dict[Literal["rl", "distill"], Count] = Field(default={"rl": 256}, min_length=1)
    """how many problems of a split are tried, of each domain, e.g. `{rl: 400, distill: 200}`.
    Stages after this one draw only what is kept, and begin again after the last"""
    keep: list[Pool] = Field(default=["moderate"], min_length=1)
    """`solved`: all of the first answers are right; `moderate`: some are; `hard`: none is, and one
    of up to `most`; `never`: none of `most`"""
    first: PerStep = 8
    """answers to every problem"""
    most: PerStep = 512
    """answers at most to a problem of which none was right, drawn in rounds that double, until one
    is; only if `keep` has `hard` or `never`"""
    right: float = Field(default=1.0, gt=0, le=1)
    """the outcome from which an answer is right"""
    temperature: float = Field(default=1.0, gt=0)
    fleet: FleetSpec = FleetSpec()

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if len(set(self.keep)) < len(self.keep):
            raise ValueError(f"keep: {', '.join(self.keep)} has a pool twice; name each once")
        # A form and a recipe on record write the default, too.
        if not self.goes_on and self.most != type(self).model_fields["most"].default:
            raise ValueError(
                f"most: is not used, as only {' and '.join(BEYOND_FIRST)} need more than the first"
                " answers, and `keep` has neither; leave it out"
            )
        if "moderate" in self.keep and self.first < 2:
            raise ValueError(
                "first: one answer alone is never right only sometimes, as `moderate` asks; write 2"
                " or more"
            )
        if "hard" in self.keep and self.most == self.first:
            raise ValueError(
                f"most: {self.most} is `first` as well, so no more answers are drawn of which one"
                " may be right, as `hard` asks; raise it"
            )
        if self.goes_on and self.most < self.first:
            raise ValueError(
                f"most: {self.most} answers are fewer than the first {self.first}; write as many"
                " or more"
            )
        return self

    @property
    def goes_on(self) -> bool:
        """Return whether more than the first answers are drawn."""
        return any(pool in BEYOND_FIRST for pool in self.keep)

    @property
    def rounds(self) -> list[int]:
        """Answers of each round to a problem that is in it. Example: first 8, most 50 -> 8, 8, 16,
        18"""
        sizes, total = [self.first], self.first
        while self.goes_on and total < self.most:
            sizes.append(min(total, self.most - total))
            total += sizes[-1]
        return sizes


class ScreenSpec(AnswersProblems):
    """Input: `model`. Artifact: `admitted.parquet` with the problems that are kept, the pass rate
    of each that was tried, and some rollouts to browse."""

    kind: ClassVar[str] = "screen"
    makes = "problems"
    settings: ScreenSettings
    domains: list[ScoredDomain] = Field(min_length=1)

    @classmethod
    def in_path(cls, settings: ScreenSettings, place: Place) -> tuple[Self, dict[str, str]]:
        """After an `admit` it tries what that admitted; an earlier `screen` does not count, whose
        model was another."""
        domains = [ScoredDomain.of(domain) for domain in place.with_problems()]
        inputs = {"model": place.model}
        for split in settings.problems:
            inputs |= place.unscreened.admitted_problems(split)
        return cls(seed=place.seed, settings=settings, domains=domains), inputs

    @property
    def drawn(self) -> Mapping[Split, int]:
        return {**self.settings.problems}

    @property
    def kept_pools(self) -> Sequence[Pool]:
        return self.settings.keep
