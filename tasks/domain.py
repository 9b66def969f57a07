"""A domain: problems, how they are rolled out, and how answers are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, PositiveInt, model_validator

from infra.config import Config
from infra.errors import InputError

if TYPE_CHECKING:
    from engines.rollout.seams import LiveDomain
    from engines.types import Curriculum


class HookSpec(Config):
    """A part found by name (built in) or by dotted path (`my_package.my_file:MyClass`)."""

    name: str
    """built-in name, or `module:attribute` of the user's own"""
    options: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments of its constructor"""


class RewardTerm(HookSpec):
    """One weighted reward of a domain's rubric."""

    weight: float = 1.0
    """factor in the training reward; may be negative"""
    outcome: bool = False
    """whether its score is the domain's outcome (exactly one term is)"""


class Domain(Config):
    """What one expert is about."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    curriculum: HookSpec
    rewards: list[RewardTerm] = Field(min_length=1)
    """the rubric: training reward = sum of weight x score"""
    max_new_tokens: PositiveInt = 48
    """budget of one rollout over all its turns"""
    max_turns: PositiveInt = 1
    """assistant turns a rollout may take; over 1 needs a curriculum with an environment"""

    @model_validator(mode="after")
    def _one_outcome(self) -> Domain:
        marked = sum(term.outcome for term in self.rewards)
        if marked != 1:
            raise ValueError(
                f"domain {self.name!r}: {marked} rewards say `outcome: true`; exactly one must"
            )
        return self


def build_curriculum(domain: Domain) -> Curriculum:
    """The domain's curriculum. Raises InputError for an unknown name or wrong options."""
    from curricula.registry import build

    return build(domain.curriculum.name, domain.curriculum.options)


def open_domain(domain: Domain) -> LiveDomain:
    """Build a domain's curriculum, environment and rubric. Raises InputError."""
    from engines.rollout.seams import LiveDomain
    from rewards.registry import build
    from rewards.rubric import Rubric, Term

    curriculum = build_curriculum(domain)
    environment = curriculum.environment()
    if domain.max_turns > 1 and environment is None:
        raise InputError(
            f"domain {domain.name!r} asks for max_turns {domain.max_turns}, but its curriculum "
            f"{domain.curriculum.name!r} has no environment: nothing would answer the first turn"
        )
    terms = [Term(t.name, t.weight, t.outcome, build(t.name, t.options)) for t in domain.rewards]
    return LiveDomain(
        name=domain.name,
        curriculum=curriculum,
        judge=Rubric(terms),
        environment=environment,
        max_new_tokens=domain.max_new_tokens,
        max_turns=domain.max_turns,
    )
