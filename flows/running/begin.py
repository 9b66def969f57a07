"""A new run on record, of any flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.catalog import DISTILL_ROUNDS
from flows.recipe import Recipe
from flows.rounds.series import begin_rounds
from flows.running.records import RunRecord, new_run


def begin(
    recipe: Recipe,
    flow: str,
    arguments: Mapping[str, Any],
    *,
    name: str = "",
    in_process: bool,
    asked: Mapping[str, Any] | None = None,
) -> RunRecord:
    """`asked`: how a form asked for the recipe by its name, if it did.

    Raises NotDue for rounds that have nothing to do.
    """
    if flow == DISTILL_ROUNDS:
        return begin_rounds(recipe, arguments, name=name, in_process=in_process, asked=asked)
    return new_run(recipe, flow, arguments, name=name, in_process=in_process, asked=asked)
