"""Says what differs: between trees of settings, and two recipes or runs with their stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final, Literal

from pydantic import Field

from flows.catalog import plan_of
from flows.checks.hook_checks import own_files
from flows.explain import nearest
from flows.load import apply_changes, is_recipe, load_recipe, shipped_recipes, validate_recipe
from flows.plan import PlannedStage
from flows.reasons import DELETED, Change, Part, changes, identity_of, planned_identities
from flows.recipe import Recipe
from flows.running.records import RunRecord, find_run, has_run, run_entries
from infra.config import Config
from infra.errors import InputError
from infra.store.artifacts import ArtifactStore
from tasks.durable.stage_identity import StageIdentity

POST_TRAIN = "post-train"
State = Literal["cached", "again", "new", "gone"]


class _Missing:
    """A field that one of the two trees does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True)
class Difference:
    """Example: Difference("experts.agent.path.1.rl.steps", 2, 4)"""

    path: str
    before: Any
    """MISSING where only `after` has the field"""
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield each field that differs once, in the order in which the trees have them."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key, MISSING), after.get(key, MISSING), below)
    elif isinstance(before, list) and isinstance(after, list) and _are_by_place(before, after):
        for index, pair in enumerate(zip_longest(before, after, fillvalue=MISSING)):
            yield from differences(*pair, f"{path}.{index}")
    elif before != after:
        yield Difference(path, before, after)


def listed(found: Sequence[Difference], most: int = 8) -> str:
    """Lines for a message; those beyond `most` are counted."""
    more = [f"and {len(found) - most} more"] if len(found) > most else []
    return "\n".join(f"  {line}" for line in [*found[:most], *more])


def _are_by_place(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether lists are compared item by item: of one length, or of stages and the like."""
    if len(before) == len(after):
        return True
    return all(isinstance(item, Mapping) for item in [*before, *after])


def _shown(value: Any) -> str:
    return "nothing" if value is MISSING or value is None else f"{value!r:.60}"


@dataclass(frozen=True, slots=True)
class Side:
    """Example: Side("cpu-demo", {"name": "cpu-demo", ...}, [base, ...], {"base": ...})"""

    name: str
    """as a person named it"""
    settings: Mapping[str, Any]
    """the whole recipe with its defaults, and which flow runs it"""
    plan: Sequence[PlannedStage]
    identities: Mapping[str, StageIdentity]
    """by stage"""
    unfinished: Mapping[str, str] = field(default_factory=dict[str, str])
    """stages of a run that made no result, and what became of them"""


def side_of(name: str, changes: Sequence[str], described: str) -> Side:
    """Return a recipe by file or shipped name, else a run by id or name. A run with changes is its
    recipe with these, as it would run now. `described` is what messages call the argument.

    Raises InputError for what is neither.
    """
    if is_recipe(name):
        return _of_recipe(name, load_recipe(name, changes), POST_TRAIN, {})
    if not has_run(name):
        known = [*shipped_recipes(), *(entry.name or entry.run for entry in run_entries())]
        raise InputError(
            f"{described} `{name}`: no such file, and neither a shipped recipe"
            f" ({', '.join(shipped_recipes())}) nor a run of this home (`tributary runs`)"
            f"{nearest(name, known)}"
        )
    record = find_run(name)
    if not changes:
        return _of_run(name, record)
    head = record.head()
    apply_changes(head.recipe, changes)
    recipe = validate_recipe(head.recipe, f"run {record.run} with --set")
    return _of_recipe(name, recipe, head.flow, head.arguments)


def _of_recipe(name: str, recipe: Recipe, flow: str, arguments: Mapping[str, Any]) -> Side:
    plan = plan_of(flow, recipe, arguments)
    return Side(name, _settings(recipe, flow, arguments), plan, _present(recipe, plan))


def _of_run(name: str, record: RunRecord) -> Side:
    """Stages as they were made, under the code of that time; those that were not, as of now."""
    head, recipe = record.head(), record.recipe()
    side = _of_recipe(name, recipe, head.flow, head.arguments)
    identities, unfinished = dict(side.identities), dict[str, str]()
    artifacts, stages = ArtifactStore(record.store), record.stages()
    for planned in side.plan:
        known = stages.get(planned.name)
        if known is None or not known.is_done:
            unfinished[planned.name] = known.state if known else "not begun"
            continue
        manifest = artifacts.manifest(known.kind, known.digest)
        made = identity_of(manifest) if manifest else None
        if made is None:
            unfinished[planned.name] = DELETED
        else:
            identities[planned.name] = made
    return replace(side, identities=identities, unfinished=unfinished)


def _present(recipe: Recipe, plan: Sequence[PlannedStage]) -> dict[str, StageIdentity]:
    return planned_identities(plan, own_files(recipe))


def _settings(recipe: Recipe, flow: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"flow": flow, "arguments": dict(arguments), **recipe.model_dump(mode="json")}


class Setting(Config):
    """A field that differs; a side that does not have it has no value here."""

    path: str
    values: dict[Literal["a", "b"], Any]


class Reason(Config):
    part: Part
    text: str


class StageFate(Config):
    """What becomes of a stage."""

    stage: str
    kind: str
    state: State
    """cached: A made what B needs; again: A made another one; new: A has no stage of this name;
    gone: B has none"""
    digest_a: str = ""
    digest_b: str = ""
    reasons: list[Reason] = Field(default_factory=list[Reason])
    """why it runs again"""


class Diff(Config):
    """What `tributary diff --json` prints."""

    a: str
    b: str
    settings: list[Setting]
    stages: list[StageFate]
    """in B's order; those that only A has come last"""


def compare_sides(a: Side, b: Side) -> Diff:
    made = {identity.digest for name, identity in a.identities.items() if name not in a.unfinished}
    stages = [_fate(stage, a, b, made) for stage in b.plan]
    return Diff(
        a=a.name,
        b=b.name,
        settings=[_setting(d.path, d.before, d.after) for d in differences(a.settings, b.settings)],
        stages=[*stages, *_gone(a, b)],
    )


def _setting(path: str, before: Any, after: Any) -> Setting:
    values: dict[Literal["a", "b"], Any] = {}
    if before is not MISSING:
        values["a"] = before
    if after is not MISSING:
        values["b"] = after
    return Setting(path=path, values=values)


def _fate(stage: PlannedStage, a: Side, b: Side, made: set[str]) -> StageFate:
    after = b.identities[stage.name]
    before = a.identities.get(stage.name)
    fate = StageFate(
        stage=stage.name, kind=stage.kind, state="cached", digest_b=after.digest,
        digest_a=before.digest if before else "",
    )  # fmt: skip
    if after.digest in made:
        return fate
    if before is None or before.kind != after.kind:
        return fate.model_copy(update={"state": "new"})
    found = [*changes(before, after), *_inputs(stage, a, b, made)]
    told = [side.name for side in (a, b) if side.identities[stage.name].again]
    if told and not found:
        found = [Change("setting", f"{' and '.join(told)} was told to run it again")]
    if not found and stage.name in a.unfinished:
        found = [Change("input", f"{a.name} did not finish it: {a.unfinished[stage.name]}")]
    reasons = [Reason(part=change.part, text=change.text) for change in found]
    return fate.model_copy(update={"state": "again", "reasons": reasons})


def _inputs(stage: PlannedStage, a: Side, b: Side, made: set[str]) -> Iterator[Change]:
    before = a.identities[stage.name].inputs
    for role, source in stage.inputs.items():
        digest = b.identities[source].digest
        if role not in before:
            yield Change("input", f"{role}: {source} is a new input")
        elif before[role] != digest:
            what = "is another artifact" if digest in made else "runs again"
            yield Change("input", f"{role}: {source} {what}")
    for role in before.keys() - stage.inputs.keys():
        yield Change("input", f"{role}: is no longer an input")


def _gone(a: Side, b: Side) -> Iterator[StageFate]:
    here: Mapping[str, object] = b.identities
    for stage in a.plan:
        if stage.name not in here:
            digest = a.identities[stage.name].digest
            yield StageFate(stage=stage.name, kind=stage.kind, state="gone", digest_a=digest)
