"""Evaluate and compare any models: import each HF folder, then score all in the same way."""

from __future__ import annotations

from collections.abc import Mapping

from flows.plan import Plan, PlannedStage
from flows.recipe import Recipe


def plan_evaluate(recipe: Recipe, models: Mapping[str, str]) -> list[PlannedStage]:
    """HF folders by name, on the recipe's domains."""
    plan = Plan(recipe)
    imported = {name: plan.imported(name, folder) for name, folder in models.items()}
    everywhere = [domain.name for domain in recipe.domains]
    plan.evaluate(imported, dict.fromkeys(models, everywhere), recipe.domains)
    return plan.stages
