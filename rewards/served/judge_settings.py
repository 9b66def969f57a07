"""Options of the reward `judge`: what it asks, and how a score is read from the answer."""

from __future__ import annotations

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from infra.config import Config, Count
from rewards.served.prompt import prompt_fault, reference_places


class JudgeSettings(Config):
    """At least one of `pattern` and `choices` says how a score is read."""

    prompt: str
    """what the judge is asked, with {question}, {answer}, {conversation}, {reference} or
    {reference.NAME} in it; braces that are no place are doubled"""
    system: str = ""
    """its system message; empty: none"""
    thinking: bool | None = None
    """whether it is asked for a thought; left out: off, unless its chat template always opens one.
    A score is never read from a thought"""
    pattern: str | None = None
    """a regular expression; its last match in the answer counts, or its group 1 if it has one:
    a number on `scale`, or, with `choices`, one of them"""
    scale: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    """the numbers that mean the scores 0 and 1; a number outside is no score"""
    choices: dict[str, FiniteFloat] = Field(default_factory=dict)
    """scores by answer, e.g. {"Yes": 1, "No": 0}. Without `pattern` nothing is generated: each
    choice counts by the probability that the judge gives it"""
    unreadable: FiniteFloat | None = None
    """score of an answer without one; none: the sample is failed"""
    max_new_tokens: Count = 64
    """of the judge's answer, its thought included"""
    temperature: float = Field(default=0.0, ge=0)

    @property
    def reference_keys(self) -> tuple[str, ...]:
        """The fields of a reference that its prompt shows; `""` for the whole of it."""
        return reference_places(self.prompt)

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if fault := prompt_fault(self.prompt):
            raise ValueError(f"prompt: {fault}")
        if self.pattern is None and not self.choices:
            raise ValueError("says not how a score is read; write `pattern` or `choices`")
        if len(self.choices) == 1:
            raise ValueError("choices: one choice tells nothing apart; write two or more")
        if any(not choice.strip() for choice in self.choices):
            raise ValueError("choices: an empty text is no answer; leave it out")
        if self.scale[0] == self.scale[1]:
            raise ValueError("scale: its two numbers are equal; write those of scores 0 and 1")
        if self.pattern is not None:
            _check_pattern(self.pattern)
        return self


def _check_pattern(pattern: str) -> None:
    import regex

    try:
        groups = regex.compile(pattern).groups
    except regex.error as error:
        raise ValueError(f"pattern: is no regular expression: {error}") from None
    if groups > 1:
        raise ValueError(f"pattern: has {groups} groups; one says what counts")
