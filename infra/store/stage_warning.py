"""What a person must know of an artifact before they trust it."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from infra.config import Config


class StageWarning(Config):
    """What a person must know before they trust a stage's result: it trained on little, say.

    Example: what="2 of 3 steps made no update", cause="all groups had equal rewards", advice="draw
    harder problems", figures={"steps": 3, "skipped": 2}
    """

    # A figure may be NaN; JSON has no word for it.
    model_config = ConfigDict(ser_json_inf_nan="strings")

    what: str
    cause: str = ""
    advice: str = ""
    figures: dict[str, float] = Field(default_factory=dict)

    def __str__(self) -> str:
        said = f"{self.what}: {self.cause}" if self.cause else self.what
        return f"{said}. {self.advice[:1].upper()}{self.advice[1:]}" if self.advice else said
