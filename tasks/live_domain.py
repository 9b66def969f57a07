"""From a domain as a person wrote it to its live parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from curricula.own_process import ProcessEnvironment
from curricula.registry import BUILT_IN as CURRICULA
from curricula.registry import build as build_curriculum
from engines.rollout.built_in_parts import DRIVERS
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.drivers.driver import build as build_driver
from engines.types import Curriculum, Environment, Reward
from infra.errors import InputError
from infra.processes.part_process import PartProcess
from rewards.own_process import ProcessReward
from rewards.registry import QUICK
from rewards.registry import build as build_reward
from rewards.rubric import Rubric, Term
from rewards.served.build import build_served
from tasks.domain import Domain, RewardSpec, RewardTerm, ScoredDomain
from tasks.served.roles import RoleClients, role_name


@runtime_checkable
class HasProcess(Protocol):
    """A driver whose rollouts run in a process of its own."""

    @property
    def process(self) -> object: ...


@dataclass(frozen=True, slots=True)
class OpenDomain:
    """A domain ready for rollouts, once its processes are started; they end when it is closed."""

    live: LiveDomain
    environment: Environment | None
    """what a conversation acts on; a driver may have a world of its own"""
    processes: Sequence[PartProcess]
    """of the parts that are not ours, or run what is not ours"""


def open_domain(domain: Domain | ScoredDomain, roles: RoleClients | None = None) -> OpenDomain:
    """Build a domain's curriculum, environment and rubric; `roles` are what its rewards ask. Raises
    InputError."""
    curriculum = build_curriculum(domain.curriculum.name, domain.curriculum.options)
    environment, processes = _environment(domain, curriculum)
    terms: list[Term] = []
    for term in _rewards(domain):
        reward = _reward(term, roles)
        processes += [reward.process] if isinstance(reward, ProcessReward) else []
        terms.append(Term(term.name, term.weight, term.outcome, reward, tuple(term.sources)))
    named = domain.driver
    driver = build_driver(named.name, named.options, environment, domain.max_turns)
    if isinstance(driver, HasProcess) and isinstance(driver.process, PartProcess):
        processes.append(driver.process)
    live = LiveDomain(
        name=domain.name,
        curriculum=curriculum,
        judge=Rubric(terms),
        driver=driver,
        max_new_tokens=domain.max_new_tokens,
        driver_timeout_s=None if named.name in DRIVERS else named.timeout_s,
    )
    return OpenDomain(live, environment, processes)


def _rewards(domain: Domain | ScoredDomain) -> Sequence[RewardTerm]:
    if isinstance(domain, Domain):
        return domain.rewards
    return [RewardTerm(**dict(term), outcome=True) for term in domain.outcomes]


def _reward(term: RewardSpec, roles: RoleClients | None) -> Reward:
    if term.name in QUICK:
        return build_reward(term.name, term.options)
    if term.served is not None:
        if roles is None:
            raise InputError(f"reward {term.name!r} asks a served model, and none is served here")
        return build_served(term.name, term.options, roles.of(role_name(term)), term.timeout_s)
    return ProcessReward(term.name, term.options, term.timeout_s)


def _environment(
    domain: Domain | ScoredDomain, curriculum: Curriculum
) -> tuple[Environment | None, list[PartProcess]]:
    """What a rollout of several turns acts on, and its process where it has one of its own."""
    named = domain.curriculum
    environment = curriculum.environment()
    if domain.max_turns > 1 and environment is None:
        raise InputError(
            f"domain {domain.name!r} asks for max_turns {domain.max_turns}, but its curriculum "
            f"{named.name!r} has no environment, so nothing could answer the model's first turn"
        )
    if environment is None or named.name in CURRICULA:
        return environment, []
    apart = ProcessEnvironment(named.name, named.options, domain.timeout_s)
    return apart, [apart.process]
