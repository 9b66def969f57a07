"""A run that begins after some stages finds them in the store, or is refused."""

from __future__ import annotations

from collections.abc import Sequence

from flows.plan import PlannedStage
from flows.reasons import stage_reasons
from flows.recipe import Recipe
from infra.errors import InputError

_WAY_OUT = "run the recipe without --from and --only: what is in the store does not run again"


def require_stored(recipe: Recipe, plan: Sequence[PlannedStage]) -> None:
    """Raises InputError that lists the stages which are not in the store, each with why."""
    if not any(stage.is_stored for stage in plan):
        return
    why = stage_reasons(recipe, list(plan))
    missing = [
        f"  {stage.name}: {', '.join(why[stage.name])}"
        for stage in plan
        if stage.is_stored and why[stage.name]
    ]
    if missing:
        lines = "\n".join(missing)
        raise InputError(
            f"recipe {recipe.name} cannot begin there: these stages come before and are not in"
            f" {recipe.storage.root}:\n{lines}\n{_WAY_OUT}"
        )


def not_stored(name: str) -> str:
    """Why a run does not go on."""
    return f"stage {name} is not in the store, and this run begins after it; {_WAY_OUT}"
