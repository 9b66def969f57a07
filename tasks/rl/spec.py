"""Settings and spec of `rl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from engines.algorithms.combinations import stale_doubts
from engines.megatron.spec import CriticSettings, Optimizer, Role, TrainerSettings
from engines.rollout.tickets import OnStale, rounded_up
from engines.types import Split
from infra.errors import InputError
from tasks.domain import Domain, HookSpec
from tasks.mine.spec import MINED
from tasks.nothink import NothinkShare, mode_problems
from tasks.path_context import Place
from tasks.policy import PolicySettings
from tasks.rl.part_specs import ROLLOUT_PARTS, BufferSpec, DataSourceSpec, GroupFilterSpec
from tasks.rl.phase_rules import Phase, phase_problems
from tasks.rl.temperature_rules import EntropyTarget, TemperatureRule, TemperatureSearch
from tasks.stage import StageSpec


class RlSettings(PolicySettings):
    oversample: float = Field(default=1.5, ge=1)
    """problems that may be drawn divided by problems still needed, in each round of generation.
    Those beyond are drawn only in place of groups that are dropped, where a buffer of your own
    chooses, or with `partial_rollout_tokens`. Without that no effect where every group is kept:
    with the filter `every`, or with an advantage that does not compare rewards within a group and
    no filter of another name"""
    refill_rounds: int = Field(default=1, ge=0)
    """largest number of further rounds in a step; they replace groups with equal rewards"""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """policy versions that rollouts may be behind when they are trained on. 0: sampling and
    training take turns. k: they go on at the same time, with up to k + 1 steps' groups waiting,
    under way or being trained on; with `partial_rollout_tokens` they take turns"""
    partial_rollout_tokens: PositiveInt | None = Field(
        default=None, exclude_if=lambda tokens: tokens is None
    )
    """partial rollouts: each time that all rollouts have written this many more tokens, the step
    ends if its groups are complete; the others go on in the next step. None: a step waits for all
    that it began"""
    on_stale: OnStale = "drop"
    """what becomes of a problem whose rollouts took more than `max_staleness` publishes: dropped
    and replaced by another, or rolled out again (`requeue`)"""
    data_source: DataSourceSpec = DataSourceSpec()
    """which problems are drawn: of which domain, and which of its problems"""
    group_filter: GroupFilterSpec = GroupFilterSpec()
    """which groups may be trained on, once they are judged; the others are replaced"""
    buffer: BufferSpec = BufferSpec()
    """which of the groups that wait a step takes, and whether one may be taken again"""
    nothink_share: NothinkShare = Field(default=0.0, exclude_if=lambda share: not share)
    """share of the problems that ask for a thought which are rolled out with thinking off, so that
    both modes are trained: one number, or one by domain, e.g. `{reasoning: 0.5}`"""
    critic: CriticSettings | None = None
    """settings of the critic, for advantage gae (presets ppo, sao); None: its defaults"""
    phases: list[Phase] | None = Field(
        default=None, min_length=2, exclude_if=lambda phases: phases is None
    )
    """pools of a `screen` that the stage moves through, one after the other, by a rule; None: one
    phase with all that the `screen` keeps"""
    temperature_search: TemperatureRule | None = Field(
        default=None, exclude_if=lambda search: search is None
    )
    """raises the sampling temperature where reward is flat, or (`kind: entropy`) keeps the entropy
    of what is sampled near a target; None: it stays as it is"""

    @model_validator(mode="before")
    @classmethod
    def _says_thinking_as_a_share(cls, written: Any) -> Any:
        if isinstance(written, dict) and "thinking" in written:
            raise ValueError(
                "thinking: whether a domain's problems ask for a thought is an option of its"
                " curriculum; for a stage that trains both modes write `nothink_share: 0.5` here"
            )
        return written

    @property
    def drawn(self) -> Mapping[Split, int]:
        needed: Mapping[Split, int] = super().drawn
        if not isinstance(self.temperature_search, TemperatureSearch):
            return needed
        most = max(needed.get("heldout", 0), self.temperature_search.problems)
        return {**needed, "heldout": most}

    @property
    def group_sizes(self) -> Sequence[int]:
        phases = self.phases or [None]
        return [(phase and phase.group_size) or self.group_size for phase in phases]

    @property
    def most_problems(self) -> int:
        """No stage draws more problems than this."""
        a_round = rounded_up(self.problems_per_step, self.oversample)
        return self.steps * (1 + self.refill_rounds) * a_round

    @property
    def samples_beside_training(self) -> bool:
        return self.max_staleness > 0 and self.partial_rollout_tokens is None

    @property
    def started_beyond(self) -> float:
        """Problems that may be begun divided by those that a step needs."""
        begins_more = self.drops_groups or self.partial_rollout_tokens
        return self.oversample if begins_more else 1.0

    @property
    def drops_groups(self) -> bool:
        """Return whether a group may be dropped and replaced, once it is judged."""
        if self.group_filter.name == "can-teach":
            return "spread" in self.algorithm.needs
        return self.group_filter.name != "every"

    @property
    def critic_role(self) -> CriticSettings | None:
        """Return what its critic is trained with; None if its algorithm has none."""
        return (self.critic or CriticSettings()) if "critic" in self.algorithm.needs else None

    @property
    def critic_only_steps(self) -> int:
        """First steps, in which the policy does not change."""
        critic = self.critic_role
        return critic.warmup_steps if critic else 0

    @property
    def updates(self) -> int:
        """Optimizer steps of the policy."""
        return max(self.steps - self.critic_only_steps, 0) * self.algorithm.mini_batches

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        """Yield the optimizer of each model that has one of its own: field, settings, optimizer
        steps."""
        yield "optimizer", self.optimizer, self.updates
        critic = self.critic_role
        if critic is not None and critic.optimizer is not None:
            passes = self.steps * critic.steps_per_policy_step
            yield "critic.optimizer", critic.optimizer, passes * self.algorithm.mini_batches

    @property
    def critic_trainer(self) -> TrainerSettings | None:
        critic = self.critic_role
        return None if critic is None else critic.trainer_beside(self.trainer)


class RlSpec(StageSpec):
    """Input: `model`."""

    kind: ClassVar[str] = "rl"
    makes = "model"
    settings: RlSettings
    domains: list[Domain] = Field(min_length=1)
    """problems of a step are drawn from them in turn"""
    start: int = Field(default=0, ge=0)
    """position of each domain's first problem: a later stage takes problems that none had"""

    @classmethod
    def in_path(cls, settings: RlSettings, place: Place) -> tuple[Self, dict[str, str]]:
        start = 0 if place.mined else place.start
        spec = cls(seed=place.seed, settings=settings, domains=place.with_problems(), start=start)
        if place.mined:
            if settings.phases:
                raise InputError(
                    f"phases: the problems of {place.mined} are in no pools; leave `phases` out"
                )
            return spec, {"model": place.model, MINED: place.mined}
        place.require_pools([phase.pools for phase in settings.phases or ()])
        return spec, {"model": place.model, **place.admitted_problems("rl")}

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        yield from self.settings.optimizers

    @property
    def drawn(self) -> Mapping[Split, int]:
        return self.settings.drawn

    @property
    def most_problems(self) -> int:
        return self.settings.most_problems

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy", "critic") if "critic" in self.settings.algorithm.needs else ("policy",)

    @property
    def sampled_domains(self) -> Sequence[Domain]:
        return self.domains

    @property
    def samples_beside_training(self) -> bool:
        return self.settings.samples_beside_training

    @property
    def rollout_parts(self) -> Mapping[str, HookSpec]:
        named = {field: getattr(self.settings, field) for field in ROLLOUT_PARTS}
        return {field: part for field, part in named.items() if part != type(part)()}

    @property
    def policy(self) -> PolicySettings:
        return self.settings

    def problems(self) -> Iterator[str]:
        settings = self.settings
        for domain in self.domains:
            if not any(term.weight for term in domain.rewards):
                yield (
                    f"domain {domain.name}: each of its rewards has weight 0, so every answer gets"
                    " the reward 0 and nothing can be learned; leave `weight` out of one"
                )
            yield from _component_problems(domain, settings)
        if settings.on_stale == "requeue" and not settings.samples_beside_training:
            yield (
                "on_stale: no rollout is ever too old where sampling and training take turns; leave"
                " it out, or raise `max_staleness`, without `partial_rollout_tokens`"
            )
        yield from _partial_rollout_problems(settings, self.domains)
        names = [domain.name for domain in self.domains]
        yield from mode_problems(settings.nothink_share, names, settings.algorithm.advantage)
        yield from critic_problems(settings)
        yield from phase_problems(settings)
        yield from _filter_problems(settings)
        yield from _temperature_problems(settings)

    def cautions(self) -> Iterator[str]:
        if self.settings.algorithm.keep is not None:
            yield (
                "algorithm.keep: rollouts are sampled from the likeliest tokens only; entropy and"
                " KL are among these, and scores are still of all tokens"
            )
        if self.settings.max_staleness:
            yield from (f"algorithm.{doubt}" for doubt in stale_doubts(self.settings.algorithm))


def _component_problems(domain: Domain, settings: RlSettings) -> Iterator[str]:
    """Where problems of a source have one reward, and the advantage compares several."""
    if "components" not in settings.algorithm.needs:
        return
    for source in domain.curriculum.sources or [""]:
        judges = [t for t in domain.rewards if not t.sources or source in t.sources]
        weighted = [term.title for term in judges if term.weight]
        if len(weighted) == 1:
            of = f" of source {source}" if source else ""
            yield (
                f"algorithm.advantage: {settings.algorithm.advantage.kind} compares several rewards"
                f" by themselves, and {weighted[0]} is the only one with a weight in domain"
                f" {domain.name}{of}; add one, or choose `group`"
            )


def critic_problems(settings: RlSettings) -> Iterator[str]:
    """Yield a critic that nothing asks, and one whose first steps alone are the whole stage."""
    role = settings.critic_role
    if role is None and settings.critic is not None:
        yield (
            f"critic: nothing uses it, as advantage {settings.algorithm.advantage.kind} has"
            " none; leave it out, or choose `algorithm: {preset: ppo}`"
        )
    if role is not None and role.warmup_steps >= settings.steps:
        yield (
            f"critic.warmup_steps: {role.warmup_steps} of {settings.steps} steps leave none to"
            " the policy; lower it"
        )


_BY_THE_CLOCK = ("harness", "library")
"""drivers whose programs may take so long in all"""


def _partial_rollout_problems(settings: RlSettings, domains: Sequence[Domain]) -> Iterator[str]:
    tokens = settings.partial_rollout_tokens
    if tokens is None:
        return
    if not settings.max_staleness:
        yield (
            "partial_rollout_tokens: a rollout that goes on in the next step has tokens of older"
            " weights, and max_staleness 0 allows none; set `max_staleness: 1` or more"
        )
    if settings.oversample == 1:
        yield (
            "partial_rollout_tokens: with oversample 1 a step begins no more than it needs, so none"
            " of it is left to the next; raise `oversample`"
        )
    for domain in domains:
        of, other = f"(domain {domain.name})", "leave it out, and sample beside training"
        if domain.driver.name in _BY_THE_CLOCK:
            what = f"programs of the driver {domain.driver.name} {of} have a time limit"
            yield f"partial_rollout_tokens: {what}, which goes on while a rollout waits; {other}"
        if domain.curriculum.mcp is not None:
            what = f"servers of `mcp` {of} are kept from rollouts that wait for one"
            yield f"partial_rollout_tokens: {what} while another waits for its next step; {other}"
    longest = max(domain.max_new_tokens for domain in domains)
    if longest <= tokens:
        yield (
            f"partial_rollout_tokens: {tokens} is no less than a rollout has, at most {longest} by"
            " `max_new_tokens`, so none is ever partial; lower it, or leave it out"
        )


def _filter_problems(settings: RlSettings) -> Iterator[str]:
    """Groups that are dropped whatever their answer, as one answer is wrong or right."""
    if settings.group_filter.name != "outcome-between":
        return
    sizes = {"group_size": settings.group_size} | {
        f"phases.{number}.group_size": phase.group_size
        for number, phase in enumerate(settings.phases or [])
        if phase.group_size is not None
    }
    for field, size in sizes.items():
        if size == 1:
            yield (
                f"{field}: the filter outcome-between drops groups of which all answers are right,"
                " or all wrong, and of one answer that is every group; write 2 or more, or choose"
                " the filter `every`"
            )


def _temperature_problems(settings: RlSettings) -> Iterator[str]:
    search = settings.temperature_search
    if isinstance(search, EntropyTarget):
        yield from _target_problems(search, settings)
        return
    if search is None:
        return
    if settings.samples_beside_training:
        yield (
            "temperature_search: above max_staleness 0 the clock decides which outcomes a step has,"
            " so a resumed stage would search at another one; set `max_staleness: 0` or"
            " `partial_rollout_tokens`, or write `kind: entropy`"
        )
    if 2 * search.window >= (updates := settings.steps - settings.critic_only_steps):
        yield (
            f"temperature_search.window: {search.window} steps are compared with as many before"
            f" them, and the stage trains its policy in {updates}, so no search would be made;"
            " lower it"
        )
    if not {*search.grid} - {settings.algorithm.temperature}:
        yield (
            "temperature_search.grid: it has only the temperature that the stage begins with; add"
            " others"
        )


def _target_problems(rule: EntropyTarget, settings: RlSettings) -> Iterator[str]:
    first, bound = settings.algorithm.temperature, settings.bounds.max_entropy
    if not rule.lowest <= first <= rule.highest:
        yield (
            f"temperature_search: the stage begins at algorithm.temperature {first:g}, outside"
            f" `lowest` {rule.lowest:g} and `highest` {rule.highest:g}; change one of them"
        )
    if rule.lowest >= rule.highest:
        yield (
            f"temperature_search: `lowest` {rule.lowest:g} is not below `highest` {rule.highest:g}:"
            " the temperature could not move"
        )
    if bound is not None and bound <= rule.target:
        yield (
            f"temperature_search.target: {rule.target:g} is not below bounds.max_entropy {bound:g},"
            " at which the stage ends; raise that, or lower the target"
        )
