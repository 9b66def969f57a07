"""From a domain as a person wrote it to its live parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from curricula.built_in_curricula import BUILT_IN as CURRICULA
from curricula.built_in_curricula import build as build_curriculum
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.drivers.driver import build as build_driver
from engines.rollout.protocols import DRIVERS
from engines.types import (
    AssistantTurn,
    Curriculum,
    Environment,
    Episode,
    Problem,
    ProtocolBreak,
    Reward,
    Step,
    Transcript,
    Verdict,
)
from infra.errors import InputError
from infra.hooks import resolve
from infra.processes.part_process import PartFailed, PartProcess, PartRaised
from rewards.built_in_rewards import BUILT_IN as REWARDS
from rewards.built_in_rewards import QUICK
from rewards.built_in_rewards import build as build_reward
from rewards.group_rewards import GroupRubric, GroupTerm
from rewards.judges.served import RewardModel, build_served
from rewards.rubric import Rubric, Term
from rewards.verdicts import NoVerdict
from tasks.domain import USER, Domain, RewardSpec, RewardTerm, ScoredDomain, UserSpec
from tasks.served.served_roles import RoleClients

BUILD_ENVIRONMENT = "curricula.built_in_curricula:build_environment"
_BREAK = f"{ProtocolBreak.__module__}.{ProtocolBreak.__qualname__}"


class ProcessEnvironment:
    """Starts episodes in the environment of a user's curriculum, behind a `PartProcess`."""

    def __init__(self, curriculum: str, options: Mapping[str, Any], timeout_s: float) -> None:
        """`timeout_s`: what the start of an episode may take, and each of its steps."""
        name, given = f"environment of {curriculum!r}", (curriculum, dict(options))
        self.process = PartProcess(name, BUILD_ENVIRONMENT, given, timeout_s)

    async def start(self, problem: Problem) -> Episode:
        """Raises PartFailed."""
        number = await self.process.call("start", problem, about=problem.id, keeps=True)
        return ProcessEpisode(self.process, number, problem.id)


class ProcessEpisode:
    """One rollout of it. It is lost with its process."""

    def __init__(self, process: PartProcess, number: int, about: str) -> None:
        self._process, self._number, self._about = process, number, about

    async def step(self, turn: AssistantTurn) -> Step:
        """Raises PartFailed, ProtocolBreak."""
        try:
            step = await self._process.call("step", turn, about=self._about, target=self._number)
        except PartRaised as error:
            if _BREAK in error.types:
                raise ProtocolBreak(error.text) from None
            raise
        if not isinstance(step, Step):
            raise PartFailed(f"answered {type(step).__name__}, not a Step")
        return step

    async def close(self) -> None:
        await self._process.call("close", about=self._about, target=self._number)


BUILD_REWARD = "rewards.built_in_rewards:build"


class ProcessReward:
    """Asks the reward behind a `PartProcess`; one call a rollout."""

    def __init__(self, name: str, options: Mapping[str, Any], timeout_s: float) -> None:
        self.process = PartProcess(
            f"reward {name!r}", BUILD_REWARD, (name, dict(options)), timeout_s
        )

    async def __call__(self, transcript: Transcript) -> Verdict:
        """Raises PartFailed, and NoVerdict for what is none."""
        return await _verdict_of(self.process, transcript, transcript.problem.id)


BUILD_GROUP_REWARD = "rewards.group_rewards:build_group_reward"


class ProcessGroupReward:
    """Asks a reward of groups behind a `PartProcess`; one call a group."""

    def __init__(self, name: str, options: Mapping[str, Any], timeout_s: float) -> None:
        self.process = PartProcess(
            f"reward {name!r}", BUILD_GROUP_REWARD, (name, dict(options)), timeout_s
        )

    async def __call__(self, transcripts: Sequence[Transcript]) -> Sequence[Verdict]:
        """Raises PartFailed, and NoVerdict for what is none."""
        return await _verdict_of(self.process, list(transcripts), transcripts[0].problem.id)


async def _verdict_of(process: PartProcess, asked: object, about: str) -> Any:
    try:
        return await process.call("__call__", asked, about=about)
    except PartRaised as error:
        if error.types[0] == f"{NoVerdict.__module__}.{NoVerdict.__qualname__}":
            raise NoVerdict(error.text) from None
        raise


@runtime_checkable
class HasProcess(Protocol):
    """A driver whose rollouts run in a process of its own."""

    @property
    def process(self) -> object: ...


@runtime_checkable
class Connected(Protocol):
    """A reward or user that asks servers which are not ours."""

    async def close(self) -> None:
        """End its connections."""
        ...


@dataclass(frozen=True, slots=True)
class OpenDomain:
    """A domain ready for rollouts, once its processes are started; they end when it is closed."""

    live: LiveDomain
    environment: Environment | None
    """what a conversation acts on, beside its user; a driver may have a world of its own"""
    processes: Sequence[PartProcess]
    """of the parts that are not ours, or run what is not ours"""
    group_processes: Sequence[PartProcess] = ()
    """of rewards that judge groups: where these come together, and not where they are rolled out"""
    connected: Sequence[Connected] = ()
    """rewards and users with connections of their own, to servers that are not ours"""


def open_domain(
    domain: Domain | ScoredDomain, roles: RoleClients | None = None, sharing: int = 1
) -> OpenDomain:
    """Build a domain's curriculum, environment and rubric; `roles` are what its rewards ask, and
    `sharing` is how many processes have their bounds, and those of its MCP server, together. Raises
    InputError."""
    named = domain.curriculum
    mcp = named.mcp.shared_by(sharing) if named.mcp is not None else None
    curriculum = build_curriculum(named.name, named.options, mcp)
    environment, processes = _environment(domain, curriculum)
    terms: list[Term] = []
    connected: list[Connected] = []
    groups: list[GroupTerm] = []
    group_processes: list[PartProcess] = []
    for term in _rewards(domain):
        if term.group:
            judge = ProcessGroupReward(term.name, term.options, term.timeout_s)
            groups.append(GroupTerm(term.title, term.weight, judge, tuple(term.sources)))
            group_processes.append(judge.process)
            continue
        reward = _reward(term, roles, sharing)
        connected += [reward] if isinstance(reward, Connected) else []
        processes += [reward.process] if isinstance(reward, ProcessReward) else []
        terms.append(as_term(term, reward))
    named = domain.driver
    world = environment
    if domain.user is not None:
        says = _user(domain.user, roles, sharing)
        connected += [says] if isinstance(says, Connected) else []
        world = resolve("user", domain.user.parts[0], {})(domain.user, says, environment)
    driver = build_driver(named.name, named.options, world, domain.max_turns)
    if isinstance(driver, HasProcess) and isinstance(driver.process, PartProcess):
        processes.append(driver.process)
    live = LiveDomain(
        name=domain.name,
        curriculum=curriculum,
        judge=Rubric(terms),
        outcome_judge=Rubric([t for t in terms if t.outcome or isinstance(t.reward, RewardModel)]),
        driver=driver,
        max_new_tokens=domain.max_new_tokens,
        group_judge=GroupRubric(groups) if groups else None,
        driver_timeout_s=None if named.name in DRIVERS else named.timeout_s,
    )
    return OpenDomain(live, environment, processes, group_processes, connected)


def as_term(term: RewardTerm, reward: Reward) -> Term:
    """The term that a person wrote, with the reward that judges."""
    return Term(
        name=term.title,
        weight=term.weight,
        outcome=term.outcome,
        reward=reward,
        sources=tuple(term.sources),
        thinking=term.thinking,
        only_right=term.only_right,
        veto=term.veto,
    )


def _rewards(domain: Domain | ScoredDomain) -> Sequence[RewardTerm]:
    if isinstance(domain, Domain):
        return domain.rewards
    return [RewardTerm(**dict(term), outcome=True) for term in domain.outcomes]


def _reward(term: RewardSpec, roles: RoleClients | None, sharing: int) -> Reward:
    if term.name in QUICK:
        return build_reward(term.name, term.options)
    if term.served is not None:
        if roles is None:
            raise InputError(f"reward {term.name!r} asks a served model, and none is served here")
        models = [roles.of(role) for role in term.served_models]
        return build_served(term.name, term.options, models, term.timeout_s)
    if term.asks_model:
        asking: Any = resolve("reward", term.name, REWARDS)
        return asking.of_options(term.options, term.timeout_s, sharing)
    return ProcessReward(term.name, term.options, term.timeout_s)


def _user(user: UserSpec, roles: RoleClients | None, sharing: int) -> object:
    """Return what says the user's next words. Raises InputError."""
    module = user.parts[0].partition(":")[0]
    if user.served is None:
        return resolve("user", f"{module}:ExternalUser", {})(user, sharing)
    if roles is None:
        raise InputError("the user is a served model, and none is served here")
    return resolve("user", f"{module}:ServedUser", {})(user, roles.of(user.served.role or USER))


def _environment(
    domain: Domain | ScoredDomain, curriculum: Curriculum
) -> tuple[Environment | None, list[PartProcess]]:
    """Return what a rollout of several turns acts on, and its process where it has one of its
    own."""
    named = domain.curriculum
    environment = curriculum.environment()
    if domain.max_turns > 1 and environment is None and domain.user is None:
        raise InputError(
            f"domain {domain.name!r} asks for max_turns {domain.max_turns}, but its curriculum "
            f"{named.name!r} has no environment, so nothing could answer the model's first turn"
        )
    if environment is None or named.name in CURRICULA or named.mcp is not None:
        return environment, []
    apart = ProcessEnvironment(named.name, named.options, domain.timeout_s)
    return apart, [apart.process]
