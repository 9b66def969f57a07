"""Plans what a flow runs, as stages of which each stands after its inputs.

Pure, so that `check`, the flows and the report share it. Each flow's own plan is in a file of its
name (`post_train.py`, `expert.py` ...); here is what they are made with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engines.megatron.spec import Parallel
from flows.explain import settings_of
from flows.path import PathStage, domains_at
from flows.recipe import Recipe
from infra.errors import InputError
from infra.user_files import install_hooks, read_hooks
from tasks.base.spec import BaseSettings, BaseSpec
from tasks.domain import Domain, ScoredDomain
from tasks.evaluate.spec import EvaluateSpec
from tasks.lm_eval.spec import LmEvalSpec, installed_version
from tasks.mine.spec import MineSpec
from tasks.path_context import AdmittedBy, Place, keeps_groups
from tasks.reward.spec import RewardSpec
from tasks.rollout.spec import RolloutSpec
from tasks.served.served_roles import ServedRole, asked_roles, is_stage
from tasks.served.spec import ServedSettings, ServedSpec
from tasks.sft.spec import SftSpec
from tasks.stage import StageResources, StageSpec, admitted_role
from tasks.stage_kinds import is_own, spec_of

MODEL = "model-"
"""what the names of stages that import a model to be compared begin with"""
ROLE = "role-"
"""what the names of stages that import a model which rewards ask begin with"""
TEACHER = "teacher-"
"""what the names of stages that import a teacher, by its domain, begin with"""
BASE, EVALUATE, LM_EVAL = "base", "evaluate", "lm-eval"
SCORING = (EVALUATE, LM_EVAL)
"""stages that score every model, and that nothing follows"""


@dataclass(slots=True)
class Walk:
    """The stages so far, by name. Example: Walk("agent", "experts.agent", [agent], "base")"""

    owner: str
    """whose path it is: an expert or `unified`"""
    where: str
    """where the recipe has it"""
    domains: Sequence[Domain]
    base: str
    expert: str = ""
    experts: Mapping[str, str] = field(default_factory=dict[str, str])
    """the teachers, by their domains"""
    best: str = ""
    """the last model that a stage made"""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    """every model that a stage made, by what scores call it"""
    _model: str = ""
    _data: str = ""
    _sampling_model: str = ""
    """the model that sampled the data"""
    _has_worse_answers: bool = False
    _judged: str = ""
    """that model, once a reward model has learned from its answers: RL against it goes on from
    there, and only an `sft` on the data begins at the base"""
    _rollouts: str = ""
    _group_size: int = 0
    _kept: list[str] = field(default_factory=list[str])
    _mined: str = ""
    _admitted: AdmittedBy | None = None
    _fit: AdmittedBy | None = None
    _screens: dict[str, AdmittedBy] = field(default_factory=dict[str, "AdmittedBy"])
    _unlearned: str = ""
    """place of the `distill` whose data nothing has read"""
    _seen: Counter[str] = field(default_factory=Counter[str])
    _drawn: Counter[str] = field(default_factory=Counter[str])

    def next_name(self, kind: str) -> str:
        """Example: agent-rl, then agent-rl-2"""
        self._seen[kind] += 1
        number = self._seen[kind]
        return f"{self.owner}-{kind}" + (f"-{number}" if number > 1 else "")

    def place(
        self, seed: int, domains: Sequence[Domain], kind: str, pools: Mapping[str, Sequence[str]]
    ) -> Place:
        """Say where the next stage of this kind stands. Raises InputError for `pools` that no stage
        before it keeps."""
        if kind == RewardSpec.kind:  # reward models of one path are drawn apart, for an ensemble
            seed += self._seen[kind] - 1
        place = Place(
            seed=seed,
            domains=domains,
            base=self.base,
            model=self._model or ("" if kind == SftSpec.kind else self._judged) or self.base,
            data=self._data,
            sampling_model=self._sampling_model,
            has_worse_answers=self._has_worse_answers,
            rollouts=self._rollouts,
            group_size=self._group_size,
            kept=tuple(self._kept),
            mined=self._mined,
            experts=self.experts,
            start=self._drawn[kind],
            admitted=self._admitted,
            fit=self._fit,
        )
        return place.of_pools(self._screens, pools)

    def go_on(
        self, name: str, at: str, spec: StageSpec, inputs: Mapping[str, str], scored_as: str
    ) -> str:
        """Go on after a stage was added; return where data are that this stage should have learned
        from."""
        if self._data in inputs.values():
            self._unlearned = ""
            if spec.kind == RewardSpec.kind:
                self._judged = self._sampling_model
        elif self._unlearned and spec.makes not in ("nothing", "problems"):
            return self._unlearned
        self._drawn[spec.kind] += spec.most_problems
        self._kept += [name] if keeps_groups(spec) else []
        self._mined = name if spec.kind == MineSpec.kind else self._mined
        if spec.makes == "model":
            self.best = self._model = name
            self.versions[scored_as] = name
            self._data = self._rollouts = self._judged = self._mined = ""
        elif spec.makes == "data":
            self._has_worse_answers, self._judged = spec.may_keep_worse_answers, ""
            self._sampling_model = "" if self.experts else self._model or self.base
            self._model, self._data, self._unlearned, self._rollouts = "", name, at, ""
        elif spec.makes == "rollouts":
            self._rollouts = name
            self._group_size = spec.settings.group_size if isinstance(spec, RolloutSpec) else 0
        elif spec.makes == "problems":
            curricula = [domain.curriculum for domain in spec.sampled_domains]
            self._admitted = AdmittedBy(name, list(spec.drawn), curricula, spec.kept_pools)
            if spec.kept_pools:
                self._screens[name] = self._admitted
            if spec.fleet is None:  # it asked no model, so what it says holds for every one
                self._fit = self._admitted
        return ""


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
    where: str = ""
    """where the recipe says its settings, e.g. `experts.agent.path.1.rl`"""
    expert: str = ""
    """expert of the stage; empty for stages of the whole recipe"""
    model: str = ""
    """the model that it makes a version of: an expert's name or `unified`; empty where it makes
    data, scores or what no stage trained"""
    scored_as: str = ""
    """what scores call that version"""
    is_stored: bool = False
    """whether it must be in the store: the run begins after it"""
    again: bool = False
    """whether it runs although the store has it"""
    accepts_code: bool = False
    """whether a result of other code of ours counts for it"""

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def steps(self) -> int:
        """Optimizer steps that it may take; 0 for a stage without any."""
        return int(getattr(getattr(self.spec, "settings", None), "steps", 0))

    @property
    def roles(self) -> Mapping[str, ServedRole]:
        """The models that its rewards ask, and the served ones that teach it."""
        return asked_roles(self.spec)

    @property
    def critic(self) -> Parallel | None:
        """Layout of its critic's ranks; None if it has no critic."""
        return self.resources.of_critic if "critic" in self.spec.trained_roles else None


@dataclass(slots=True)
class Plan:
    """Collects stages; each method adds some and returns their names, for others to build on."""

    recipe: Recipe
    stages: list[PlannedStage] = field(default_factory=list[PlannedStage])

    def add(
        self,
        name: str,
        spec: StageSpec,
        inputs: Mapping[str, str],
        *,
        where: str,
        expert: str = "",
        model: str = "",
        scored_as: str = "",
    ) -> str:
        resources = self.recipe.resources.of(name)
        asked = self._asked(spec, where)
        stage = PlannedStage(
            name, spec, {**inputs, **asked}, resources, where, expert, model, scored_as
        )
        for other in self.stages:
            if {name, scored_as} & {other.name, other.scored_as} - {""}:
                raise self._refused(
                    where.rpartition(".path")[0] or where,
                    f"the name would collide with a stage's: there are two of {name}; choose"
                    " another",
                )
        self.stages.append(stage)
        return name

    def _asked(self, spec: StageSpec, where: str) -> dict[str, str]:
        """By input: the stages whose models the stage's rewards ask, or that teach it."""
        try:
            roles = asked_roles(spec)
        except InputError as error:
            raise self._refused(where, error) from None
        return {role.input: self._served(role, where) for role in roles.values()}

    def _served(self, role: ServedRole, where: str) -> str:
        """The stage that makes or imports a role's model."""
        scoring = [stage.name for stage in self.stages if stage.kind == RewardSpec.kind]
        made = scoring if role.has_head else self._language_models()
        if is_stage(role.model):
            if role.model in made:
                return role.model
            raise self._refused(
                where,
                f"the model of role {role.name!r} is {role.model!r}, and no stage before it makes"
                f" it: name one of {', '.join(made) or 'none'}; or a folder, with a `/` in it",
            )
        name, spec = f"{ROLE}{role.name}", ServedSpec(settings=ServedSettings(folder=role.model))
        known = [stage for stage in self.stages if stage.name == name]
        if not known:
            return self.add(name, spec, {}, where=f"role {role.name}")
        if known[0].spec != spec:
            raise self._refused(
                where,
                f"the role {role.name!r} is of two models in this recipe: give one of them another"
                " `served.role`",
            )
        return name

    def _language_models(self) -> list[str]:
        """The stages so far that make or import one."""
        return [s.name for s in self.stages if s.kind == BaseSpec.kind or s.model]

    def _teacher(self, domain: str, model: str, student: str, at: str) -> str:
        """The stage that makes or imports a domain's teacher."""
        field, made = f"{at}.teachers.{domain}", self._language_models()
        if model == student or (student == BASE and model == self.recipe.base.folder):
            raise self._refused(field, f"{model} is the student itself; name another model")
        if is_stage(model):
            if model in made:
                return model
            why = f"no stage before it makes {model!r}: name one of {', '.join(made)}; or a folder"
            raise self._refused(field, why)
        name = f"{TEACHER}{domain}"
        settings = BaseSettings(folder=model, template=self.recipe.base.template)
        known = [stage for stage in self.stages if stage.name == name]
        if not known:
            return self.add(name, BaseSpec(settings=settings), {}, where=field)
        if known[0].spec != BaseSpec(settings=settings):
            raise self._refused(field, f"another stage has another folder for {domain}; use that")
        return name

    def base(self) -> str:
        """The model that every path starts from."""
        settings = self.recipe.base
        if settings.folder is not None:  # nothing is drawn
            return self.add(BASE, BaseSpec(settings=settings), {}, where="base")
        curricula = [domain.curriculum for domain in self.recipe.domains]
        spec = BaseSpec(seed=self.recipe.seed, settings=settings, curricula=curricula)
        return self.add(BASE, spec, {}, where="base")

    def expert(self, name: str, base: str, path: Sequence[PathStage] | None = None) -> Walk:
        """Return an expert's path, or another path in its place."""
        expert = self.recipe.experts[name]
        domains = [expert.domain] if expert.domain is not None else []
        walk = Walk(name, f"experts.{name}", domains, base, expert=name)
        return self._walked(walk, expert.path if path is None else path)

    def unified(self, name: str, base: str, experts: Mapping[str, str]) -> Walk:
        assert self.recipe.unified is not None
        domains = [domain for domain in self.recipe.domains if domain.name in experts]
        walk = Walk(name, name, domains, base, experts=experts)
        return self._walked(walk, self.recipe.unified.path)

    def _walked(self, walk: Walk, path: Sequence[PathStage]) -> Walk:
        """Add a path's stages, each with what the ones before it made."""
        kinds = [self._kind(stage.kind, f"{walk.where}.path.{i}") for i, stage in enumerate(path)]
        last = max((i for i, kind in enumerate(kinds) if kind.makes == "model"), default=-1)
        for index, (stage, kind) in enumerate(zip(path, kinds, strict=True)):
            at = f"{walk.where}.path.{index}.{stage.kind}"
            name = walk.next_name(kind.kind)
            domains = domains_at(path, index, walk.domains)
            settings = settings_of(kind, stage.settings, at)
            try:
                place = walk.place(self.recipe.seed, domains, kind.kind, stage.pools)
                spec, inputs = kind.in_path(settings, place)
                place.require_mined(spec, inputs)
                if stage.pools and admitted_role(place.pools) not in inputs:
                    raise InputError("pools: it draws no problems of them; leave `pools` out")
            except InputError as error:
                raise self._refused(at, error) from None
            if spec.has_teachers:
                own = [d.name for d in spec.sampled_domains if d.name in inputs]
                inputs |= {d: self._teacher(d, inputs[d], inputs["model"], at) for d in own}
            model = walk.owner if kind.makes == "model" else ""
            scored_as = walk.owner if index == last else name if model else ""
            labels = {"expert": walk.expert, "model": model, "scored_as": scored_as}
            self.add(name, spec, inputs, where=at, **labels)
            if unlearned := walk.go_on(name, at, spec, inputs, scored_as):
                raise self._refused(unlearned, _UNLEARNED)
        return walk

    def _kind(self, name: str, at: str) -> type[StageSpec]:
        """Importing one of the user's own takes his files."""
        if is_own(name):
            install_hooks(read_hooks(self.recipe.hooks, self.recipe.data))
        try:
            return spec_of(name)
        except InputError as error:
            raise self._refused(at, error) from None

    def _refused(self, at: str, why: object) -> InputError:
        return InputError(f"recipe {self.recipe.name} cannot run:\n  {at}: {why}")

    def imported(self, name: str, folder: str) -> str:
        """Return a model of any folder, to be compared."""
        spec = BaseSpec(settings=BaseSettings(folder=folder))
        return self.add(f"{MODEL}{name}", spec, {}, where=f"models.{name}")

    def evaluate(
        self,
        models: Mapping[str, str],
        home: Mapping[str, Sequence[str]],
        domains: Sequence[Domain],
        nothink: Sequence[str] = (),
    ) -> None:
        """Models by name; `home` are the domains in which each is sampled in full. Without a domain
        there is nothing to score them by but lm-eval's tasks."""
        self._lm_eval(models)
        if not domains or self.recipe.evaluate is None:
            return
        spec = EvaluateSpec(
            seed=self.recipe.seed,
            settings=self.recipe.evaluate,
            domains=[ScoredDomain.of(domain) for domain in domains],
            home={name: list(domains) for name, domains in home.items()},
            nothink=list(nothink),
        )
        self.add(EVALUATE, spec, models, where=EVALUATE)

    def _lm_eval(self, models: Mapping[str, str]) -> None:
        settings = self.recipe.lm_eval
        if settings.tasks:
            version = installed_version()
            spec = LmEvalSpec(seed=self.recipe.seed, settings=settings, version=version)
            self.add(LM_EVAL, spec, models, where="lm_eval")


_UNLEARNED = (
    "what follows does not learn from its data; put `sft`, or `preference` or `reward` without"
    " `data`, after it"
)


def versions_of(plan: Sequence[PlannedStage]) -> dict[str, list[str]]:
    """Return every version of each model, in order, as scores call it.

    Example: {"agent": ["agent-sft", "agent"]}
    """
    found: dict[str, list[str]] = {}
    for stage in plan:
        if stage.model:
            found.setdefault(stage.model, []).append(stage.scored_as)
    return found


def first_version(versions: Sequence[str]) -> str:
    """Return what a model's last version is compared with."""
    return versions[0] if len(versions) > 1 else BASE
