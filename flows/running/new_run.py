"""Puts a new run of any flow on record, with each model of a hub at one commit; goes on with a
series of rounds; continues a run only with the same parameters.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from flows.catalog import DISTILL_ROUNDS
from flows.diff import differences, listed
from flows.load import validate_recipe
from flows.page.form import Asked
from flows.plan import EVALUATE
from flows.post_train import (
    FLOW,
    Earlier,
    earlier_rounds,
    plan_distill_rounds,
    rounds_by,
    why_over,
    written,
)
from flows.recipe import Recipe
from flows.reports.report import read_scores
from flows.running.records import RunEntry, RunHead, RunRecord, StageRecord, runs_of, store_of
from flows.running.run_lock import is_running, one_at_a_time
from infra.errors import InputError
from infra.home import home, write_whole
from infra.hub import hub_name, is_hub_name, pinned
from infra.store.store import Store
from tasks.domain import RewardTerm

_MODELS = "models"
"""the argument of a flow that names folders to import"""
State = Literal["skipped", "over"]
_START_SECONDS = 300.0
"""what a run that is on record may take to be worked on: it may wait for its flow's process"""


def pinned_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe with the commits of its base and of the models that its rewards ask. Raises
    InputError, StorageError as `infra.hub.pinned` does."""
    folder = recipe.base.folder
    recipe = recipe if folder is None else _with_base(recipe, _pinned(folder))
    return _with_served(recipe, lambda _, model: _pinned(model))


def pinned_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Pin the models that a flow compares."""
    models = arguments.get(_MODELS)
    if not isinstance(models, Mapping):
        return dict(arguments)
    return {**arguments, _MODELS: {name: _pinned(str(folder)) for name, folder in models.items()}}


def recipe_as_on_record(recipe: Recipe, recorded: Recipe) -> Recipe:
    """`recipe` with the commit of a run on record, where both name the same model and this one
    leaves the commit open."""
    now, then = recipe.base.folder, recorded.base.folder
    recipe = _with_base(recipe, _as_on_record(now, then)) if now and then else recipe
    known = {role: m for _, term in _asking(recorded) for role, m in term.served_models.items()}
    return _with_served(recipe, lambda role, model: _as_on_record(model, known.get(role, "")))


def arguments_as_on_record(
    arguments: Mapping[str, Any], recorded: Mapping[str, Any]
) -> dict[str, Any]:
    """Put back the models that a flow compares."""
    now, then = arguments.get(_MODELS), recorded.get(_MODELS)
    if not (isinstance(now, Mapping) and isinstance(then, Mapping)):
        return dict(arguments)
    models = {name: _as_on_record(str(f), str(then.get(name, ""))) for name, f in now.items()}
    return {**arguments, _MODELS: models}


def _as_on_record(now: str, then: str) -> str:
    if not (is_hub_name(now) and is_hub_name(then)) or hub_name(now).is_pinned:
        return now
    return then if hub_name(now).repo == hub_name(then).repo else now


def _pinned(folder: str) -> str:
    return pinned(folder) if is_hub_name(folder) else folder


def _with_base(recipe: Recipe, folder: str) -> Recipe:
    base = recipe.base.model_copy(update={"folder": folder})
    return recipe.model_copy(update={"base": base})


def _asking(recipe: Recipe) -> Iterator[tuple[str, RewardTerm]]:
    """Every reward that asks a model, with its expert."""
    for name, expert in recipe.experts.items():
        for term in expert.domain.rewards if expert.domain is not None else ():
            if term.served is not None:
                yield name, term


def _with_served(recipe: Recipe, model_of: Callable[[str, str], str]) -> Recipe:
    """With the models that `model_of(role, model)` gives."""
    experts = dict(recipe.experts)
    for name in dict.fromkeys(expert for expert, _ in _asking(recipe)):
        domain = experts[name].domain
        assert domain is not None
        rewards = [_with_model(term, model_of) for term in domain.rewards]
        changed = domain.model_copy(update={"rewards": rewards})
        experts[name] = experts[name].model_copy(update={"domain": changed})
    return recipe.model_copy(update={"experts": experts})


def _with_model(term: RewardTerm, model_of: Callable[[str, str], str]) -> RewardTerm:
    if term.served is None:
        return term
    return term.model_copy(update={"served": term.served.with_models(term.name, model_of)})


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
        head = RunHead(
            run=_new_name(name or recipe.name, now),
            flow=flow,
            arguments=dict(pinned_arguments(due.arguments)),
            created=now,
            recipe=pinned_recipe(recipe).model_dump(mode="json"),
            asked=dict(asked or {}),
            in_process=in_process,
        )
        record = _put(head, store_of(recipe.storage))
        record.take_over(due.stages)
        _enter(recipe, record.run, name, now)
    return record


def _new_name(of: str, now: float) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{of}-{stamp}-{secrets.token_hex(2)}"


def _put(head: RunHead, store: Store) -> RunRecord:
    """Put it into the store, by another name where a run of the same second has this one."""
    while True:
        with suppress(FileExistsError):
            path = f"runs/{head.run}/recipe.json"
            store.create(path, head.model_dump_json(indent=1).encode())
            return RunRecord(store, head.run)
        of = head.run.rsplit("-", 3)[0]
        head = head.model_copy(update={"run": _new_name(of, head.created)})


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
    write_whole(home() / "runs" / f"{run}.json", entry.model_dump_json(indent=1))


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


class NotDue(Exception):
    """A trigger that has nothing to do; `state` ends the name that Prefect's page shows for it."""

    def __init__(self, state: State, why: str) -> None:
        super().__init__(why)
        self.state = state


@dataclass(frozen=True, slots=True)
class Due:
    """What a new run is to do."""

    arguments: Mapping[str, Any]
    """the flow's, in addition to the recipe"""
    stages: Sequence[StageRecord] = ()
    """of earlier runs, which it finds as these made them"""


def next_rounds(recipe: Recipe, arguments: Mapping[str, Any]) -> Due:
    """Return the rounds after the newest.

    Raises NotDue while an earlier trigger still works on this expert's rounds, and once the series
    is at its end.
    """
    expert = str(arguments["expert"])
    if running := _running(recipe, expert):
        raise NotDue(
            "skipped",
            f"run {running} still works on the rounds of {expert}; the next trigger goes on from"
            " what it makes",
        )
    earlier = earlier_rounds(recipe, expert)
    if why := _why_over(recipe, expert, earlier):
        raise NotDue(
            "over",
            f"the rounds of {expert} are at their end: {why}. Change `rounds` in the recipe to go"
            " on, or switch the schedule off",
        )
    return Due({**arguments, "after": earlier.rounds}, list(earlier.stages.values()))


def _running(recipe: Recipe, expert: str) -> str:
    """The run that works on this expert's rounds now, or is about to; empty if there is none."""
    for record in runs_of(recipe.name, store_of(recipe.storage)):
        if is_running(record.run) or _is_about_to_start(record):
            head = record.head()
            if head.flow == FLOW and head.arguments["expert"] == expert:
                return record.run
    return ""


def _is_about_to_start(record: RunRecord) -> bool:
    age = time.time() - record.head().created
    return age < _START_SECONDS and record.state().state == "pending"


def _why_over(recipe: Recipe, expert: str, earlier: Earlier) -> str:
    if earlier.run is None:
        return ""
    scores = read_scores(earlier.run, earlier.run.stage(EVALUATE))
    plan = plan_distill_rounds(recipe, expert, earlier.rounds)
    return why_over(rounds_by(recipe, expert, plan, scores), recipe.rounds)
