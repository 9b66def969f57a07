"""A domain: problems, how they are rolled out, and how answers are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from curricula.own_process import ProcessEnvironment
from infra.config import Config
from infra.errors import InputError
from infra.part_process import PartProcess
from rewards.own_process import ProcessReward

if TYPE_CHECKING:
    from engines.rollout.seams import LiveDomain
    from engines.types import Curriculum, Environment, Reward


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
    timeout_s: PositiveFloat = Field(default=60.0, allow_inf_nan=False)
    """seconds that one call of your own reward may take; then that sample is failed"""


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
    timeout_s: PositiveFloat = Field(default=60.0, allow_inf_nan=False)
    """seconds that your own environment may take to start, and for each step; then that sample is
    failed"""

    @model_validator(mode="after")
    def _one_outcome(self) -> Domain:
        marked = sum(term.outcome for term in self.rewards)
        if marked != 1:
            raise ValueError(
                f"domain {self.name!r}: {marked} rewards say `outcome: true`; exactly one must"
            )
        return self


@dataclass(frozen=True, slots=True)
class OpenDomain:
    """A domain ready for rollouts, once its processes are started; they end when it is closed."""

    live: LiveDomain
    processes: Sequence[PartProcess]
    """of the parts that are not ours"""


def build_curriculum(domain: Domain) -> Curriculum:
    """The domain's curriculum. Raises InputError for an unknown name or wrong options."""
    from curricula.registry import build

    return build(domain.curriculum.name, domain.curriculum.options)


def open_domain(domain: Domain) -> OpenDomain:
    """Build a domain's curriculum, environment and rubric. Raises InputError."""
    from engines.rollout.seams import LiveDomain
    from rewards.rubric import Rubric, Term

    curriculum = build_curriculum(domain)
    environment, processes = _environment(domain, curriculum)
    terms: list[Term] = []
    for term in domain.rewards:
        reward = _reward(term)
        processes += [reward.process] if isinstance(reward, ProcessReward) else []
        terms.append(Term(term.name, term.weight, term.outcome, reward))
    live = LiveDomain(
        name=domain.name,
        curriculum=curriculum,
        judge=Rubric(terms),
        environment=environment,
        max_new_tokens=domain.max_new_tokens,
        max_turns=domain.max_turns,
    )
    return OpenDomain(live, processes)


def _reward(term: RewardTerm) -> Reward:
    from rewards.registry import QUICK, build

    if term.name in QUICK:
        return build(term.name, term.options)
    return ProcessReward(term.name, term.options, term.timeout_s)


def _environment(
    domain: Domain, curriculum: Curriculum
) -> tuple[Environment | None, list[PartProcess]]:
    """What a rollout of several turns acts on, and its process where it has one of its own."""
    from curricula.registry import BUILT_IN

    named = domain.curriculum
    environment = curriculum.environment()
    if domain.max_turns > 1 and environment is None:
        raise InputError(
            f"domain {domain.name!r} asks for max_turns {domain.max_turns}, but its curriculum "
            f"{named.name!r} has no environment: nothing would answer the first turn"
        )
    if environment is None or named.name in BUILT_IN:
        return environment, []
    apart = ProcessEnvironment(named.name, named.options, domain.timeout_s)
    return apart, [apart.process]
