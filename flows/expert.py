"""One expert: base -> its path -> evaluate in its domain."""

from __future__ import annotations

from collections.abc import Sequence

from flows.path import PathStage
from flows.plan import BASE, Plan, PlannedStage
from flows.recipe import Recipe


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
