"""A new run on record, of any flow."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from flows.catalog import DISTILL_ROUNDS
from flows.recipe import Recipe
from flows.rounds.series import Due, next_rounds
from flows.running.hub_models import pinned_arguments, pinned_recipe
from flows.running.records import RunEntry, RunHead, RunRecord, store_of
from flows.running.run_lock import one_at_a_time
from infra.home import home


def new_run(
    recipe: Recipe,
    flow: str,
    arguments: Mapping[str, Any],
    *,
    name: str = "",
    in_process: bool,
    asked: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Put a run on record, in its store and in this home; one of rounds goes on from the newest.

    `asked`: how a form asked for the recipe by its name, if it did. Raises NotDue for rounds that
    have nothing to do.
    """
    with _due(recipe, flow, arguments) as due:
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        run = f"{name or recipe.name}-{stamp}-{secrets.token_hex(2)}"
        record = RunRecord(store_of(recipe.storage), run)
        head = RunHead(
            run=run,
            flow=flow,
            arguments=dict(pinned_arguments(due.arguments)),
            created=now,
            recipe=pinned_recipe(recipe).model_dump(mode="json"),
            asked=dict(asked or {}),
            in_process=in_process,
        )
        record.store.create(f"runs/{run}/recipe.json", head.model_dump_json(indent=1).encode())
        record.take_over(due.stages)
        _enter(recipe, run, name, now)
    return record


@contextmanager
def _due(recipe: Recipe, flow: str, arguments: Mapping[str, Any]) -> Generator[Due]:
    """What the run is to do. Of two triggers of the same rounds, the second one waits until the
    first one's run is on record."""
    if flow != DISTILL_ROUNDS:
        yield Due(arguments)
        return
    with one_at_a_time(f"rounds-{recipe.name}-{arguments['expert']}"):
        yield next_rounds(recipe, arguments)


def _enter(recipe: Recipe, run: str, name: str, now: float) -> None:
    """Let this home find the run."""
    entry = RunEntry(
        run=run,
        name=name,
        recipe=recipe.name,
        root=recipe.storage.root,
        credentials=recipe.storage.credentials,
        created=now,
    )
    path = home() / "runs" / f"{run}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")  # others list this folder at any moment
    draft.write_text(entry.model_dump_json(indent=1))
    draft.replace(path)
