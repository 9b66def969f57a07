"""Settings of what moves an RL stage's sampling temperature."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from infra.config import Config, Count, PerStep


class TemperatureSearch(Config):
    """Raises the sampling temperature where reward is flat. A search samples the first held-out
    problems at each temperature of the grid, and takes the highest that is near the best."""

    kind: Literal["search"] = "search"
    grid: list[PositiveFloat] = Field(default=[1.0, 1.1, 1.2, 1.3, 1.4], min_length=1)
    """temperatures that are tried, besides the present one; `algorithm.temperature` is the first"""
    window: PositiveInt = 10
    """reward is flat when the mean outcome of so many steps is not above that of as many before
    them by more than `gain`; all of these steps are of one phase, and since the last search"""
    gain: float = Field(default=0.01, ge=0, lt=1)
    """what the mean outcome, from 0 to 1, must rise by so that no search is made"""
    within: float = Field(default=0.01, ge=0, lt=1)
    """how much a temperature may lose against the best, in mean outcome, from 0 to 1"""
    confidence: float = Field(default=0.8, ge=0.5, lt=1)
    """from which a paired one-sided test over problems leaves a temperature out that loses more.
    0.5: the measured loss alone counts"""
    problems: Count = 64
    """held-out problems of each domain"""
    samples: PerStep = 4
    """of each problem at each temperature"""
    timeout_s: PositiveFloat = 300.0
    """time limit in seconds for each temperature; after it the problems that are finished count"""
    searches: PositiveInt = 4
    """in the stage, at most"""


class EntropyTarget(Config):
    """Moves the sampling temperature T after each update, so that the metric `entropy` H stays near
    `target`: ln T changes by gain x (target - H) / target, at most by `most`, and T stays within
    `lowest` and `highest`."""

    kind: Literal["entropy"]
    target: PositiveFloat
    """mean entropy of what tokens are sampled from, in nats a token"""
    gain: PositiveFloat = 0.1
    """what ln T would rise by where the entropy is 0, were there no `most`"""
    most: PositiveFloat = 0.05
    """largest change of ln T in a step"""
    lowest: PositiveFloat = 0.7
    """temperature that it never goes below; `algorithm.temperature` is the first"""
    highest: PositiveFloat = 1.5
    """temperature that it never goes above"""


def _with_kind(written: Any) -> Any:
    return {"kind": "search", **written} if isinstance(written, dict) else written


TemperatureRule: TypeAlias = Annotated[
    TemperatureSearch | EntropyTarget, Field(discriminator="kind"), BeforeValidator(_with_kind)
]
