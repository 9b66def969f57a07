"""Plans the flows: all experts then unified, one expert alone, the evaluation of any models, or
iterative self-distillation: an expert's verified answers teach a fresh cold start, and the best
round of a series is promoted.

    base -> the expert's path up to its first `distill` -> round 1 -> round 2 ... -> evaluate

A round is `distill` and what follows it up to the next. The rounds that the path holds come first,
and the last of them again for those after; a path without one gets `distill` and itself again.
Schedulable: each trigger continues from the newest round of the same settings, on problems that no
round used before. What promotes a round and what ends the series stands below.

The evaluation scores every version of the expert on the same held-out problems, so the verdict on
each round follows from the last evaluation alone and is the same whenever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.path import OPTIONS, PathStage
from flows.plan import BASE, Plan, PlannedStage
from flows.recipe import Recipe, RoundsSettings
from flows.reports.paired_tests import paired, problem_outcomes
from flows.running.records import (
    DONE,
    RunHead,
    RunRecord,
    StageRecord,
    runs_of,
    store_of,
    warn_once,
)
from infra.config import Config
from infra.errors import CorruptArtifact, DamagedRecord, InputError
from tasks.evaluate.score_statistics import interval, judged_in_both, mean
from tasks.stage import StageSpec

UNIFIED = "unified"
FLOW = "distill-rounds"
DERIVED = ("after",)
"""arguments that a run of it has on record and nobody writes"""
CHOOSE, DISTILL = ("admit", "screen"), "distill"
_BETTER = {"sure": "surely better", "higher": "better"}
"""by `rounds.promote`"""


def plan_post_train(recipe: Recipe) -> list[PlannedStage]:
    """Train every expert, unify them, evaluate all models on the way."""
    plan = Plan(recipe)
    everywhere = [domain.name for domain in recipe.domains]

    base = plan.base()
    models, home = {BASE: base}, {BASE: everywhere}

    experts: dict[str, str] = {}
    for name, expert in recipe.experts.items():
        walked = plan.expert(name, base)
        models |= walked.versions
        if expert.domain is None:
            home |= dict.fromkeys(walked.versions, everywhere)
        else:
            if expert.teaches:
                experts[expert.domain.name] = walked.best or base
            home |= {key: [expert.domain.name] for key in walked.versions}

    if recipe.unified is None:
        plan.evaluate(models, home, recipe.domains)
        return plan.stages

    # From the base again, not from an expert: no domain has a head start.
    walked = plan.unified(UNIFIED, base, experts)
    models |= walked.versions
    home |= dict.fromkeys(walked.versions, everywhere)
    nothink = [name for name in walked.versions if name == UNIFIED]
    plan.evaluate(models, home, recipe.domains, nothink)
    return plan.stages


def plan_expert(
    recipe: Recipe, name: str, path: Sequence[PathStage] | None = None
) -> list[PlannedStage]:
    """The expert alone, on its own path or on another one."""
    plan = Plan(recipe)
    domain = recipe.experts[name].domain
    domains = [] if domain is None else [domain]
    base = plan.base()
    walked = plan.expert(name, base, path)
    models = {BASE: base, **walked.versions}
    plan.evaluate(models, {key: [d.name for d in domains] for key in models}, domains)
    return plan.stages


def plan_evaluate(recipe: Recipe, models: Mapping[str, str]) -> list[PlannedStage]:
    """HF folders by name, on the recipe's domains."""
    if not recipe.lm_eval.tasks:
        _require_evaluation(recipe)
    plan = Plan(recipe)
    imported = {name: plan.imported(name, folder) for name, folder in models.items()}
    everywhere = [domain.name for domain in recipe.domains]
    plan.evaluate(imported, dict.fromkeys(models, everywhere), recipe.domains)
    return plan.stages


def _require_evaluation(recipe: Recipe) -> None:
    """Raises InputError for a recipe that scores no model."""
    if recipe.evaluate is None:
        raise InputError(
            f"recipe {recipe.name}: `evaluate` is null, and this flow scores models; remove that"
            " line"
        )


def plan_distill_rounds(recipe: Recipe, expert: str, rounds: int) -> list[PlannedStage]:
    """Plan so many rounds in all, whatever the expert's path holds."""
    _require_evaluation(recipe)
    return plan_expert(recipe, expert, _path(recipe, expert, rounds))


def _path(recipe: Recipe, expert: str, rounds: int) -> list[PathStage]:
    first, *written = _split(recipe.experts[expert].path)
    template = written[-1] if written else [_distill_of(recipe), *first]
    harder = recipe.rounds.harder.get(expert, [])
    admits = [stage for part in (first, *written) for stage in part if stage.kind in CHOOSE]
    added = [
        _at_level(template, harder[: number + 1][-1:], admits[-1:]) for number in range(rounds)
    ]
    wanted = [*written, *added][:rounds]
    return [*first, *(stage for one in wanted for stage in one)]


def _at_level(
    stages: Sequence[PathStage],
    options: Sequence[Mapping[str, Any]],
    admits: Sequence[PathStage],
) -> list[PathStage]:
    """Return a round whose curriculum has other options, if any are given. Where the expert's path
    chooses problems, the other ones are tried before the round draws any."""
    if not options:
        return list(stages)
    first, *others = [*admits, *(stage for stage in stages if stage.kind not in CHOOSE)]
    return [first.model_copy(update={OPTIONS: dict(options[0])}), *others]


def _split(path: list[PathStage]) -> list[list[PathStage]]:
    """Return what comes before the first round, and each round."""
    parts: list[list[PathStage]] = [[]]
    for stage in path:
        if stage.kind == DISTILL:
            parts.append([])
        parts[-1].append(stage)
    return parts


def _distill_of(recipe: Recipe) -> PathStage:
    """Return it as the unified model's path says it; else by default."""
    path = recipe.unified.path if recipe.unified is not None else []
    found = [stage for stage in path if stage.kind == DISTILL]
    return found[0] if found else PathStage.model_validate({DISTILL: {}})


@dataclass(frozen=True, slots=True)
class Earlier:
    """Finished rounds. Example: Earlier(2, {"base": StageRecord(...), ...})"""

    rounds: int = 0
    stages: Mapping[str, StageRecord] = field(default_factory=dict[str, StageRecord])
    """of the rounds and what comes before them, by name"""
    run: RunRecord | None = None
    """the run that finished them"""


def earlier_rounds(recipe: Recipe, expert: str) -> Earlier:
    """The most rounds of this expert that any run on record finished under these settings.

    A new run reuses their digests, so that a change of our code does not train them again.
    """
    best = Earlier()
    for record in runs_of(recipe.name, store_of(recipe.storage)):
        try:
            found = _finished(record, recipe, expert)
        except (DamagedRecord, CorruptArtifact) as error:
            warn_once(f"run {record.run} is passed over: {error}")
            continue
        if found.rounds > best.rounds:
            best = found
    return best


def written(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's arguments as the flow takes them."""
    return {name: value for name, value in arguments.items() if name not in DERIVED}


def _finished(record: RunRecord, recipe: Recipe, expert: str) -> Earlier:
    """The rounds of one run whose stages, and those before them, have the same settings here."""
    head = record.head()
    if head.flow != FLOW or head.arguments["expert"] != expert:
        return Earlier()
    try:
        theirs = record.recipe()
    except InputError:  # of a version that wrote recipes in another way
        return Earlier()
    stages = record.stages()
    rounds = 0
    while _is_done(_specs(theirs, expert, rounds + 1), stages):
        rounds += 1
    ours = _specs(recipe, expert, rounds)
    known = {name: stages[name] for name in ours if name in stages}
    same = _specs(theirs, expert, rounds) == ours and len(known) == len(ours)
    return Earlier(rounds, known, record) if same else Earlier()


def _is_done(specs: Mapping[str, StageSpec], stages: Mapping[str, StageRecord]) -> bool:
    known = [stages.get(name) for name in specs]
    return all(stage is not None and stage.state in DONE for stage in known)


def _specs(recipe: Recipe, expert: str, rounds: int) -> dict[str, StageSpec]:
    """Return what the stages up to a round are made of; each reads the ones before it."""
    planned = plan_distill_rounds(recipe, expert, rounds)
    return {stage.name: stage.spec for stage in planned if stage.expert or not stage.inputs}


class Round(Config):
    """A round as the evaluation saw it; outcomes are 0 to 1."""

    number: int
    """0 is the expert before its first round, or the base where nothing before that trains"""
    model: str
    """what scores call its last model"""
    stage: str
    """that made it"""
    score: float
    low: float
    high: float
    """95% interval of the score, over problems"""
    over: str = ""
    """the best model before it; empty for the first"""
    gain: float = 0.0
    gain_low: float = 0.0
    gain_high: float = 0.0
    """what it gained over that model, problem by problem, with the 95% interval of the mean"""
    promoted: bool = True


def rounds_of(
    head: RunHead, recipe: Recipe, plan: Sequence[PlannedStage], scores: Mapping[str, Any]
) -> list[Round]:
    """The rounds of a run, by the content of its `scores.json`; none for runs of other flows."""
    if head.flow != FLOW:
        return []
    return rounds_by(recipe, str(head.arguments["expert"]), plan, scores)


def rounds_by(
    recipe: Recipe, expert: str, plan: Sequence[PlannedStage], scores: Mapping[str, Any]
) -> list[Round]:
    domain = recipe.experts[expert].domain
    assert domain is not None, "rounds draw problems, so a plan of them has been refused"
    found = problem_outcomes(scores)
    outcomes = {model: own for (model, scored), own in found.items() if scored == domain.name}
    return judge(rounds_in(plan, expert), outcomes, recipe.rounds)


def rounds_in(plan: Sequence[PlannedStage], expert: str) -> list[PlannedStage]:
    """The stage of the newest model at the end of each round, by the round's number; 0 is before
    any round, where nothing but the base may be made."""
    ends = [stage for stage in plan if stage.name == BASE]
    for stage in plan:
        if stage.expert == expert:
            if stage.kind == DISTILL:
                ends.append(ends[-1])
            if stage.scored_as:
                ends[-1] = stage
    return ends


def judge(
    last: Sequence[PlannedStage],
    outcomes: Mapping[str, Sequence[float | None]],
    settings: RoundsSettings,
) -> list[Round]:
    """The rounds whose last models (`rounds_in`) were scored; outcomes are means by problem.

    Raises ValueError where two models answered different numbers of problems.
    """
    judged: list[Round] = []
    for number, stage in enumerate(last):
        model = stage.scored_as or stage.name
        own = outcomes.get(model)
        if own is None:
            break
        known = [value for value in own if value is not None]
        if not known:
            break
        low, high = interval(known)
        found = Round(
            number=number, model=model, stage=stage.name,
            score=mean(known), low=low, high=high,
        )  # fmt: skip
        best = best_of_rounds(judged)
        if best is not None:
            found = _compared(found, own, best, outcomes[best.model], settings)
        judged.append(found)
    return judged


def _compared(
    found: Round,
    own: Sequence[float | None],
    best: Round,
    others: Sequence[float | None],
    settings: RoundsSettings,
) -> Round:
    known = judged_in_both(others, own)
    if not known[0]:
        return found.model_copy(update={"over": best.model, "promoted": False})
    gain = paired(*known)
    measured = gain.difference if settings.promote == "higher" else gain.low
    return found.model_copy(
        update={
            "over": best.model,
            "gain": gain.difference,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "promoted": measured > settings.margin,
        }
    )


def best_of_rounds(judged: Sequence[Round]) -> Round | None:
    """The one promoted last; None before the first evaluation."""
    return next((found for found in reversed(judged) if found.promoted), None)


def why_over(judged: Sequence[Round], settings: RoundsSettings) -> str:
    """Why the series is at its end, in a sentence; empty while it goes on."""
    best = best_of_rounds(judged)
    if best is None:
        return ""
    done = judged[-1].number
    if settings.target is not None and best.score >= settings.target:
        return (
            f"round {best.number} reached {best.score:.3f}, and `rounds.target` is"
            f" {settings.target:g}"
        )
    if settings.most is not None and done >= settings.most:
        return f"{done} rounds are done, and `rounds.most` is {settings.most}"
    if done - best.number >= settings.patience:
        better = _BETTER[settings.promote]
        return (
            f"none of the last {done - best.number} rounds was {better} than round {best.number}"
            f" ({best.score:.3f}), and `rounds.patience` is {settings.patience}"
        )
    return ""


def table_of_rounds(judged: Sequence[Round]) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text: the curve of a series."""
    best = best_of_rounds(judged)
    rows = [
        [
            str(found.number),
            found.model,
            f"{found.score:.3f} ({found.low:.2f} to {found.high:.2f})",
            f"{found.gain:+.3f} ({found.gain_low:+.3f} to {found.gain_high:+.3f}) over {found.over}"
            if found.over
            else "",
            "@best" if found is best else "promoted" if found.promoted else "not promoted",
        ]
        for found in judged
    ]
    return ["round", "model", "outcome (95%)", "gain (95%)", "verdict"], rows
