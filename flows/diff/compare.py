"""Two sides compared: their settings, and the stages that B runs again given what A has made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from flows.diff.side import Side
from flows.differences import MISSING, differences
from flows.plan import PlannedStage
from flows.reasons import Change, Part, changes
from infra.config import Config

State = Literal["cached", "again", "new", "gone"]


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


def compare(a: Side, b: Side) -> Diff:
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
    if before.again and not found:
        found = [Change("input", f"{a.name} was told to run it again, and its result differs")]
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
