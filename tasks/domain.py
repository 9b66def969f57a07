"""A domain: problems, how they are rolled out, and how answers are judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from curricula.built_in_curricula import BUILT_IN as CURRICULA
from curricula.built_in_curricula import OF_LIBRARIES
from curricula.mcp.spec import McpServer
from curricula.prompt_files.spec import PromptFiles, PromptSource
from engines.rollout.protocols import DRIVERS
from engines.sglang.spec import FleetSpec
from engines.types import VETOED
from infra.config import RESULT_NEUTRAL, Config, Count
from infra.hooks import resolve
from rewards.built_in_rewards import ASKING, ASKING_OPTIONS, BUILT_IN, PENALTIES, SERVED_OPTIONS
from rewards.built_in_rewards import BUILT_IN as REWARDS
from rewards.judges.chat_api import ChatApiSettings
from rewards.judges.judge_prompt import places_fault
from rewards.references import reference_checks, reference_keys
from tasks.served.served_model import ServedModel, check_several
from tasks.stage import StageSpec


def with_needs(options: Mapping[str, Any], rewards: Sequence[RewardSpec]) -> dict[str, Any]:
    """Add to the sources of `files` what our rewards read of a reference, and what checks it."""
    given = options["sources"]
    listed: list[Any] = given if isinstance(given, list) else [given]
    sources: list[Any] = []
    for written in listed:
        source = PromptSource.model_validate(written)
        judged = [r for r in rewards if not r.sources or source.name in r.sources]
        keys = {k for r in judged if r.name in BUILT_IN for k in reference_keys(r.name, r.options)}
        checks = {k: c for r in judged for k, c in reference_checks(r.name).items()}
        added = {"needs": sorted(keys.union(source.needs)), "checks": checks | source.checks}
        sources.append({**dict(written), **{name: new for name, new in added.items() if new}})
    return {**options, "sources": sources if isinstance(given, list) else sources[0]}


class HookSpec(Config):
    """A part found by name (built in) or by dotted path (`my_package.my_file:MyClass`)."""

    name: str
    """built-in name, or `module:attribute` of the user's own"""
    options: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments of its constructor"""


class CurriculumSpec(HookSpec):
    """Where problems and demonstrations come from."""

    mcp: McpServer | None = Field(default=None, exclude_if=lambda mcp: mcp is None)
    """an MCP server, whose tools the model may call; for a curriculum without an environment"""

    @field_validator("options")
    @classmethod
    def _are_those_of_files(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """The options of `files` are read here, so that each that is wrong is named."""
        if info.data.get("name") == "files":
            PromptFiles.model_validate(options)
        return options

    @property
    def sources(self) -> list[str]:
        """Names of the sources of `files`; none of another curriculum."""
        if self.name != "files":
            return []
        return [source.name for source in PromptFiles.model_validate(self.options).sources]

    @property
    def parts(self) -> tuple[str, ...]:
        """What a library's task is made of counts too."""
        named = self.options.get(OF_LIBRARIES.get(self.name, ""))
        task = named.partition(":")[0].rpartition("/")[2] if isinstance(named, str) else ""
        own = (f"{task.replace('-', '_')}:",) if task else ()
        return (CURRICULA.get(self.name, self.name), *own)


class RewardSpec(HookSpec):
    """What scores an answer."""

    label: str = Field(default="", pattern=r"^([a-z][a-z0-9-]*)?$")
    """what figures and reasons call it, for two rewards of one name; empty: its name"""
    timeout_s: PositiveFloat = 60.0
    """time limit in seconds of one call of your own reward; a sample that exceeds it is failed"""
    sources: list[str] = Field(default_factory=list)
    """names of the sources of the curriculum `files` whose problems it judges; empty: all"""
    served: ServedModel | None = None
    """the model that `judge` asks, and the model or models that `reward-model` asks; for no other
    reward"""

    @property
    def title(self) -> str:
        return self.label or self.name

    @property
    def parts(self) -> tuple[str, ...]:
        return (REWARDS.get(self.name, self.name),)

    @property
    def asks_model(self) -> bool:
        """Return whether it judges in a stage only: it asks a served model, or one at an
        address."""
        return self.name in ASKING

    @property
    def served_models(self) -> Mapping[str, str]:
        """Return the models by role, which is what resources call them; empty of a reward that asks
        none."""
        return self.served.by_role(self.name) if self.served is not None else {}

    @property
    def judges_some_only(self) -> bool:
        """Return whether some rollouts of its domain are not its business."""
        return bool(self.sources)

    @model_validator(mode="after")
    def _asks_a_model(self) -> Self:
        """The options of ours that ask one are read here, so that each that is wrong is named."""
        if self.name not in SERVED_OPTIONS and self.served is not None:
            raise ValueError(
                f"served: only {' and '.join(SERVED_OPTIONS)} ask a served model; leave it out"
            )
        if self.name in SERVED_OPTIONS and self.served is None:
            raise ValueError("served: is missing; name the model, e.g. {model: hf:org/name}")
        if self.label == "outcome":
            raise ValueError("label: the outcome's own score is called `outcome`; choose another")
        if self.label == VETOED:
            raise ValueError(f"label: `{VETOED}` marks a rollout with a veto; choose another")
        if self.asks_model:
            options: Any = resolve("options", ASKING_OPTIONS[self.name], {})
            settings = options.model_validate(self.options)
            if self.served is not None:
                check_several(self.name, settings, self.served)
        return self


class RewardTerm(RewardSpec):
    """One weighted reward of a domain's rubric."""

    weight: float = 1.0
    """factor in the training reward; may be negative, but for an outcome"""
    outcome: bool = False
    """whether its score is the domain's outcome (exactly one term is)"""
    group: Annotated[bool, RESULT_NEUTRAL] = False
    """whether it judges all rollouts of a problem together: `def reward(transcripts)`. That follows
    from the reward, which is refused otherwise, and so is not in a digest"""

    thinking: bool | None = Field(default=None, exclude_if=lambda thinking: thinking is None)
    """true: it judges only rollouts that are asked to think; false: only those with thinking off;
    left out: all"""
    only_right: bool = Field(default=False, exclude_if=lambda only_right: not only_right)
    """whether it counts only where the outcome is 1, as a penalty for length should"""
    veto: bool = Field(default=False, exclude_if=lambda veto: not veto)
    """whether a score of 0 or less is a broken rule: the training reward is then 0, whatever the
    other rewards say, and at most the least of the group"""

    @property
    def judges_some_only(self) -> bool:
        return super().judges_some_only or self.thinking is not None

    @model_validator(mode="after")
    def _learns_what_is_right(self) -> Self:
        if self.outcome and self.options.get("disagreement_penalty") and self.served_models:
            raise ValueError(
                "options.disagreement_penalty: may leave less than 0, which is no outcome; write"
                " `combine: least`, or give another reward `outcome: true`"
            )
        if self.outcome and self.weight < 0:
            raise ValueError(
                f"weight: is {self.weight:g}, and an outcome of 1 is a right answer, which would be"
                " unlearned; write 0 or more"
            )
        return self

    @model_validator(mode="after")
    def _judges_some_rollouts_only(self) -> Self:
        for name, is_set in (
            ("thinking", self.thinking is not None),
            ("only_right", self.only_right),
        ):
            if is_set and (self.outcome or self.group):
                which = "the outcome" if self.outcome else "a reward of whole groups"
                raise ValueError(
                    f"{name}: {which} judges every rollout; leave it out, or write it for another"
                    " reward"
                )
        return self

    @model_validator(mode="after")
    def _may_veto(self) -> Self:
        if self.veto and self.name in PENALTIES:
            raise ValueError(f"veto: {self.name} gives 0 to what is fine; leave it out")
        if self.veto and (self.outcome or self.group):
            which = "the outcome" if self.outcome else "a reward of whole groups"
            raise ValueError(
                f"veto: {which} cannot forbid a rollout; leave it out, or write it for another"
                " reward, which judges one rollout"
            )
        return self

    @model_validator(mode="after")
    def _may_judge_groups(self) -> Self:
        if self.group and self.name in REWARDS:
            raise ValueError(f"group: {self.name} judges one rollout; only a reward of yours may")
        if self.group and self.outcome:
            raise ValueError(
                "group: an outcome is what one rollout is worth by itself; give another reward"
                " `outcome: true`"
            )
        return self


class DriverSpec(HookSpec):
    """What runs a rollout."""

    name: str = "conversation"
    """built-in name, or `module:attribute` of the user's own"""
    timeout_s: PositiveFloat = 60.0
    """time limit in seconds of what your own driver does between two turns of the policy; a rollout
    that exceeds it is failed"""

    @property
    def parts(self) -> tuple[str, ...]:
        """The program that a harness runs counts too."""
        program = self.options.get("program")
        programs = (f"{program}:",) if isinstance(program, str) and program else ()
        return (DRIVERS.get(self.name, self.name), *programs)


USER = "user"


class UserSpec(Config):
    """A model that plays the user: it answers each turn that calls no tool."""

    system: str
    """who the user is and what they want, with {question}, {reference} or {reference.NAME} in it;
    and when to say `stop`"""
    served: ServedModel | None = None
    """its model, served beside the policy; its role is `user` where it has no other"""
    api: ChatApiSettings | None = None
    """or a model at an address, with bounds as those of an `external-judge`"""
    stop: str = Field(default="###STOP###", min_length=1)
    """what the user says to end the conversation; the turn that holds it is left out"""
    max_new_tokens: Count = 256
    """of one of its turns; one that is cut off fails the sample"""
    temperature: float = Field(default=0.0, ge=0)
    thinking: bool | None = None
    """whether a served user is asked for a thought, which nobody sees"""
    timeout_s: PositiveFloat = 60.0
    """time limit in seconds of one of its turns; a later one fails the sample"""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("tasks.served.simulated_user:UserEnvironment",)

    @model_validator(mode="after")
    def _is_played_by_one(self) -> Self:
        if (self.served is None) == (self.api is None):
            raise ValueError("user: write either `served` or `api`, the model that plays it")
        if self.served is not None:
            check_several(USER, self, self.served)
        if fault := places_fault(self.system, ("question", "reference")):
            raise ValueError(f"user.system: {fault}")
        return self


class Domain(Config):
    """What one expert is about."""

    name: str = Field(default="", pattern=r"^([a-z][a-z0-9-]*)?$")
    """optional; the default is the expert's key"""
    curriculum: CurriculumSpec
    rewards: list[RewardTerm] = Field(min_length=1)
    """the rubric: training reward = sum of weight x score"""
    driver: DriverSpec = DriverSpec()
    """what runs a rollout: a conversation with the curriculum's environment, or your own"""
    user: UserSpec | None = Field(default=None, exclude_if=lambda user: user is None)
    """who answers the model's turns without a call; left out: such a turn ends the conversation"""
    max_new_tokens: Count = 48
    """token budget of one rollout, over all its turns"""
    max_turns: PositiveInt = 1
    """most assistant turns of a rollout; a value above 1 needs a curriculum with an environment"""
    timeout_s: PositiveFloat = 60.0
    """time limit in seconds for the start of your own environment and for each step; a sample that
    exceeds it is failed"""

    @model_validator(mode="after")
    def _rows_have_what_rewards_read(self) -> Domain:
        if self.curriculum.name == "files":
            options = with_needs(self.curriculum.options, self.rewards)
            made = self.curriculum.model_copy(update={"options": options})
            object.__setattr__(self, "curriculum", made)  # it is frozen from here on
        return self

    @model_validator(mode="after")
    def _belongs_together(self) -> Domain:
        """A library's task rolls out and scores by itself; tools are called in a conversation."""
        for what, is_there in (("curriculum.mcp", self.curriculum.mcp), ("user", self.user)):
            if is_there is not None and self.max_turns == 1:
                raise ValueError(
                    f"max_turns: is 1, so no answer of `{what}` would be read; raise it"
                )
            if is_there is not None and self.driver.name in ("harness", "library"):
                raise ValueError(f"driver {self.driver.name}: does without `{what}`; leave it out")
        judge, driver = "library-score", "library"
        is_posed = self.curriculum.name in OF_LIBRARIES
        if is_posed != (self.driver.name == driver):
            names = " and ".join(OF_LIBRARIES)
            raise ValueError(
                f"the curricula {names} are rolled out by `driver: {{name:"
                f" {driver}}}`, and it rolls out no others"
            )
        if not is_posed and any(term.name == judge for term in self.rewards):
            raise ValueError(
                f"the reward {judge} judges problems of {' and '.join(OF_LIBRARIES)} only"
            )
        return self

    @model_validator(mode="after")
    def _one_outcome(self) -> Domain:
        known = self.curriculum.sources
        for term in self.rewards:
            if unknown := [name for name in term.sources if name not in known]:
                raise ValueError(
                    f"reward {term.name} names the source {unknown[0]!r};"
                    f" its curriculum {self.curriculum.name!r} has {', '.join(known) or 'none'}"
                )
        for source in known or [""]:
            judges = [t for t in self.rewards if not t.sources or source in t.sources]
            of = f" of source {source!r}" if len(known) > 1 else ""
            marked = sum(term.outcome for term in judges)
            if marked != 1:
                raise ValueError(f"{marked} rewards{of} say `outcome: true`; exactly one must")
            titles = Counter(term.title for term in judges)
            if twice := [title for title, count in titles.items() if count > 1]:
                raise ValueError(
                    f"{titles[twice[0]]} rewards{of} are called {twice[0]};"
                    " give each a `label` of its own, by which its figures are told apart"
                )
        return self


class ScoredDomain(Config):
    """What `distill` and `evaluate` read of a domain: no reward but the outcomes'."""

    name: str
    curriculum: CurriculumSpec
    outcomes: list[RewardSpec] = Field(min_length=1)
    """judge whether an answer is right, from 0 to 1: one for each source of problems"""
    driver: DriverSpec = DriverSpec()
    user: UserSpec | None = Field(default=None, exclude_if=lambda user: user is None)
    max_new_tokens: PositiveInt
    max_turns: PositiveInt
    timeout_s: PositiveFloat

    @classmethod
    def of(cls, domain: Domain) -> ScoredDomain:
        fields = set(RewardSpec.model_fields)
        return cls(
            name=domain.name,
            curriculum=domain.curriculum,
            outcomes=[
                RewardSpec(**term.model_dump(include=fields))
                for term in domain.rewards
                if term.outcome
            ],
            driver=domain.driver,
            user=domain.user,
            max_new_tokens=domain.max_new_tokens,
            max_turns=domain.max_turns,
            timeout_s=domain.timeout_s,
        )


class AnswersProblems(StageSpec):
    """A stage that has a model answer problems of its domains, and trains none."""

    settings: Any
    domains: Any

    @property
    def fleet(self) -> FleetSpec:
        return self.settings.fleet

    @property
    def sampled_domains(self) -> Sequence[Domain | ScoredDomain]:
        return self.domains
