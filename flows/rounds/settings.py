"""What a recipe says of its rounds of self-distillation (`rounds:`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from infra.config import Config


class RoundsSettings(Config):
    """How `distill-rounds` goes on: which round becomes `@best`, how rounds get harder, and when a
    series ends."""

    promote: Literal["sure", "higher"] = "sure"
    """`sure`: a round is promoted if the 95% interval of what it gained over the best one so far,
    problem by problem, is above `margin`; `higher`: if its mean gain is"""
    margin: float = Field(default=0.0, ge=0, lt=1)
    """outcome, 0 to 1, by which a round must be better"""
    patience: int = Field(default=2, ge=1)
    """the series ends after so many rounds in a row that were not promoted"""
    most: int | None = Field(default=None, ge=1)
    """the series ends after so many rounds; empty: no limit"""
    target: float | None = Field(default=None, gt=0, le=1)
    """the series ends once the best round's outcome is this high; empty: no target"""
    harder: dict[str, list[dict[str, Any]]] = Field(default_factory=dict[str, list[dict[str, Any]]])
    """by expert: changes of its curriculum's options in the rounds that the flow adds to its path,
    in the first one, the second one ...; the last one stays. Example: `{agent: [{levels: [easy,
    medium]}, {levels: [medium]}]}`. The evaluation uses the unchanged options"""
