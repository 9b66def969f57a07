"""Expert-then-unified: base -> each expert's path -> the unified model's path -> evaluate."""

from __future__ import annotations

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
