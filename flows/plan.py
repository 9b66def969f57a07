"""The recipe, top to bottom, as stages: pure, so that `check`, the flows and the report share it.

    base -> {expert: sft -> rl (-> distill -> sft -> rl) x rounds}
         -> distill -> unified-sft (from base)   `unify: sft` or `sft+opd`
         -> unified-opd (experts as teachers)    `unify: opd` or `sft+opd`
         -> unified-rl -> evaluate

A plan is a list of `PlannedStage` in which each stage stands after its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.megatron.spec import Parallel
from flows.recipe import Expert, Recipe, Unified
from tasks.base.spec import BaseSettings, BaseSpec
from tasks.distill.spec import DistillSpec
from tasks.domain import Domain, RewardSpec, ScoredDomain
from tasks.evaluate.spec import EvaluateSpec
from tasks.opd.spec import STUDENT, OpdSettings, OpdSpec
from tasks.rl.spec import RlSettings, RlSpec
from tasks.sft.spec import SftSettings, SftSpec
from tasks.stage import StageResources, StageSpec

MODEL = "model-"
"""what the names of stages that import a model to be compared begin with"""
UNIFIED = "unified"
UNIFYING = ("distill", "unified-sft", "unified-opd")
"""stages that a plan holds or not, by what `unify` says"""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage of a recipe before anything runs.

    Example: PlannedStage("agent-rl", RlSpec(...), {"model": "agent-sft"}, StageResources())
    """

    name: str
    spec: StageSpec
    inputs: Mapping[str, str]
    """role -> the stage that produces its artifact"""
    resources: StageResources
    expert: str = ""
    """expert of the stage; empty for stages of the whole recipe"""
    model: str = ""
    """the model that it makes a version of: an expert's name or `unified`; empty where it makes
    data, scores or what no stage trained"""
    scored_as: str = ""
    """what scores call that version"""

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def critic(self) -> Parallel | None:
        """Layout of its critic's ranks; None if it has no critic."""
        return self.resources.of_critic if "critic" in self.spec.trained_roles else None


@dataclass(slots=True)
class _Draft:
    """Collects stages; each method adds one and returns its name, for others to build on."""

    recipe: Recipe
    stages: list[PlannedStage] = field(default_factory=list[PlannedStage])

    def add(
        self,
        name: str,
        spec: StageSpec,
        expert: str = "",
        *,
        model_of: str = "",
        scored_as: str = "",
        **inputs: str,
    ) -> str:
        resources = self.recipe.resources.of(name)
        stage = PlannedStage(name, spec, inputs, resources, expert, model_of, scored_as)
        self.stages.append(stage)
        return name

    def base(self) -> str:
        settings = self.recipe.base
        if settings.folder is not None:  # nothing is drawn
            return self.add("base", BaseSpec(settings=settings))
        curricula = [domain.curriculum for domain in self.recipe.domains]
        spec = BaseSpec(seed=self.recipe.seed, settings=settings, curricula=curricula)
        return self.add("base", spec)

    def expert(self, name: str, base: str) -> dict[str, str]:
        """The expert's models by the names they have in scores."""
        expert = self.recipe.experts[name]
        as_cold = {"model_of": name, "scored_as": f"{name}-sft"}
        cold = self.add(f"{name}-sft", self._cold_start(expert), name, **as_cold, model=base)
        as_best = {"model_of": name, "scored_as": name}
        best = self.add(f"{name}-rl", self._expert_rl(expert), name, **as_best, model=cold)
        for number in range(1, expert.rounds + 1):
            best = self.round(name, number, base, best)
        return {f"{name}-sft": cold, name: best}

    def round(self, name: str, number: int, base: str, teacher: str) -> str:
        """One round of self-distillation: the expert's own verified answers, SFT, RL again."""
        expert = self.recipe.experts[name]
        domain = expert.domain_of_round(number)
        # Each round goes on in the problems where the one before ended at the latest.
        distill = self._distill([domain], start=(number - 1) * self.recipe.distill.problems)
        data = self.add(f"{name}-distill-r{number}", distill, name, **{name: teacher})
        cold = self.add(f"{name}-sft-r{number}", self._sft(expert.sft), name, model=base, data=data)
        rl = RlSpec(
            seed=self.recipe.seed,
            settings=expert.rl,
            domains=[domain],
            start=number * expert.rl.most_problems,
        )
        return self.add(f"{name}-rl-r{number}", rl, name, model_of=name, scored_as=name, model=cold)

    def distill(self, experts: Mapping[str, str]) -> str:
        return self.add("distill", self._distill(self.recipe.domains), **experts)

    def unified(self, settings: Unified, base: str, experts: Mapping[str, str]) -> dict[str, str]:
        """The unified model's stages by the names their models have in scores."""
        models: dict[str, str] = {}
        best = base
        operators = self.recipe.unify.split("+")
        if "sft" in operators and settings.sft is not None:
            data = self.distill(experts)
            # From the base again, not from an expert: no domain has a head start.
            best = models["unified-sft"] = self.unified_sft(settings.sft, base, data)
        if "opd" in operators and settings.opd is not None:
            best = models["unified-opd"] = self.unified_opd(settings.opd, best, experts)
        return models | {UNIFIED: self.unified_rl(settings.rl, best)}

    def unified_sft(self, settings: SftSettings, base: str, data: str) -> str:
        spec = self._sft(settings)
        return self._unified("unified-sft", spec, "unified-sft", model=base, data=data)

    def unified_opd(self, settings: OpdSettings, student: str, teachers: Mapping[str, str]) -> str:
        recipe = self.recipe
        spec = OpdSpec(seed=recipe.seed, settings=settings, domains=recipe.domains)
        return self._unified("unified-opd", spec, "unified-opd", **{STUDENT: student, **teachers})

    def unified_rl(self, settings: RlSettings, model: str) -> str:
        spec = RlSpec(seed=self.recipe.seed, settings=settings, domains=self.recipe.domains)
        return self._unified("unified-rl", spec, UNIFIED, model=model)

    def _unified(self, name: str, spec: StageSpec, scored_as: str, **inputs: str) -> str:
        return self.add(name, spec, model_of=UNIFIED, scored_as=scored_as, **inputs)

    def evaluate(
        self,
        models: Mapping[str, str],
        home: dict[str, list[str]],
        domains: list[Domain],
        nothink: list[str],
    ) -> str:
        spec = EvaluateSpec(
            seed=self.recipe.seed,
            settings=self.recipe.evaluate,
            domains=[_scored(domain) for domain in domains],
            home=home,
            nothink=nothink,
        )
        return self.add("evaluate", spec, **models)

    def _cold_start(self, expert: Expert) -> SftSpec:
        curriculum = expert.domain.curriculum
        return SftSpec(seed=self.recipe.seed, settings=expert.sft, curriculum=curriculum)

    def _sft(self, settings: SftSettings) -> SftSpec:
        """On a dataset, which holds as many demonstrations as it does."""
        unread = {"demonstrations": SftSettings.model_fields["demonstrations"].default}
        return SftSpec(seed=self.recipe.seed, settings=settings.model_copy(update=unread))

    def _expert_rl(self, expert: Expert) -> RlSpec:
        return RlSpec(seed=self.recipe.seed, settings=expert.rl, domains=[expert.domain])

    def _distill(self, domains: list[Domain], start: int = 0) -> DistillSpec:
        scored = [_scored(domain) for domain in domains]
        return DistillSpec(
            seed=self.recipe.seed, settings=self.recipe.distill, domains=scored, start=start
        )


def _scored(domain: Domain) -> ScoredDomain:
    outcome = next(term for term in domain.rewards if term.outcome)
    return ScoredDomain(
        name=domain.name,
        curriculum=domain.curriculum,
        outcome=RewardSpec(**outcome.model_dump(include=set(RewardSpec.model_fields))),
        max_new_tokens=domain.max_new_tokens,
        max_turns=domain.max_turns,
        timeout_s=domain.timeout_s,
    )


def plan_post_train(recipe: Recipe) -> list[PlannedStage]:
    """Expert-then-unified; the experts alone where the recipe says nothing of a unified model."""
    draft = _Draft(recipe)
    everywhere = [domain.name for domain in recipe.domains]
    base = draft.base()
    models, home = {"base": base}, {"base": everywhere}
    for name, expert in recipe.experts.items():
        made = draft.expert(name, base)
        models |= made
        home |= {key: [expert.domain.name] for key in made}
    if recipe.unified is None:
        draft.evaluate(models, home, recipe.domains, nothink=[])
        return draft.stages
    unified = draft.unified(recipe.unified, base, {name: models[name] for name in recipe.experts})
    models |= unified
    home |= dict.fromkeys(unified, everywhere)
    draft.evaluate(models, home, recipe.domains, nothink=["unified"])
    return draft.stages


def plan_expert(recipe: Recipe, expert: str) -> list[PlannedStage]:
    """One expert alone, evaluated in its own domain."""
    draft = _Draft(recipe)
    base = draft.base()
    models = {"base": base} | draft.expert(expert, base)
    domain = recipe.experts[expert].domain
    home = {name: [domain.name] for name in models}
    draft.evaluate(models, home, [domain], nothink=[])
    return draft.stages


def plan_distill_rounds(recipe: Recipe, expert: str, rounds: int) -> list[PlannedStage]:
    """`rounds` rounds of self-distillation of one expert in all, whatever its recipe says."""
    changed = recipe.experts[expert].model_copy(update={"rounds": rounds})
    experts = recipe.experts | {expert: changed}
    return plan_expert(recipe.model_copy(update={"experts": experts}), expert)


def plan_evaluate(recipe: Recipe, models: Mapping[str, str]) -> list[PlannedStage]:
    """Compare any HF folders on the recipe's domains: each is imported, then all are evaluated."""
    draft = _Draft(recipe)
    stages = {
        name: draft.add(f"{MODEL}{name}", BaseSpec(settings=BaseSettings(folder=folder)))
        for name, folder in models.items()
    }
    home = {name: [domain.name for domain in recipe.domains] for name in models}
    draft.evaluate(stages, home, recipe.domains, nothink=[])
    return draft.stages
