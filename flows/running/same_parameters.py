"""A flow run may continue a recorded run only if its parameters are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.differences import differences, listed
from flows.distill_rounds import written
from flows.load import validate_recipe
from flows.page.asked import Asked
from flows.running.hub_models import arguments_as_on_record, recipe_as_on_record
from flows.running.records import RunHead
from infra.errors import InputError


def require_same(head: RunHead, flow: str, asked: Asked, arguments: Mapping[str, Any]) -> None:
    """Raises InputError, with what differs, unless the run on record is what is asked for.

    A run keeps the recipe that it began with: one asked for by name as before may have been saved
    anew since.
    """
    known = written(head.arguments)
    before: dict[str, Any] = {"flow": head.flow, "arguments": known}
    after: dict[str, Any] = {"flow": flow, "arguments": arguments_as_on_record(arguments, known)}
    if asked.by_name != head.asked or not head.asked:
        recorded = validate_recipe(head.recipe, f"run {head.run}")
        before |= recorded.model_dump(mode="json")
        after |= recipe_as_on_record(asked.resolved(), recorded).model_dump(mode="json")
    found = list(differences(before, after))
    if found:
        raise InputError(
            f"this flow run continues run {head.run}, but its parameters differ from the run's"
            f" record, so the change would have no effect:\n{listed(found)}\n"
            "Start a new run for the change: `tributary run RECIPE`, or Run on Prefect's page"
        )
