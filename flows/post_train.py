"""Plans the flows: all experts then unified, one expert alone, or the evaluation of any models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flows.path import PathStage
from flows.plan import BASE, Plan, PlannedStage
from flows.recipe import Recipe

UNIFIED = "unified"


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
    plan = Plan(recipe)
    imported = {name: plan.imported(name, folder) for name, folder in models.items()}
    everywhere = [domain.name for domain in recipe.domains]
    plan.evaluate(imported, dict.fromkeys(models, everywhere), recipe.domains)
    return plan.stages
