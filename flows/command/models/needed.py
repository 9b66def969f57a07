"""Which artifacts of a store something still needs, and which could go.

Needed are those of running runs (what they will reach included) and of the newest runs of each
recipe, those that the recipes and arguments of these runs name (a base, files, a judge), those that
an alias in MLflow points at, those that are pinned, and all that is younger than an hour: a run may
have begun that is not on record yet.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flows.catalog import plan_of
from flows.command.made_by import made_by
from flows.planned_digests import planned_identities
from flows.running.records import RunHead, RunRecord
from infra.errors import DamagedRecord, InputError, TributaryError
from infra.store import removal
from infra.store.artifacts import ArtifactStore
from infra.store.pins import pins
from infra.store.store import Store
from infra.tracking.aliases import AliasedArtifact
from infra.user_files import install_hooks, read_hooks

YOUNG_S = 3600.0
_SHORT = 12
_READERS = 16
"""files read at once: on S3 each waits for its answer"""
_IN_A_STORE = re.compile(r"/artifacts/[^/]+/([0-9a-f]{12})(?:/|$)", re.MULTILINE)
"""a path or URL at or below an artifact"""
_LIVE = ("running", "pending")


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Something that nobody needs. Example: kind="rl", digest="3f09...", bytes=2_600_000"""

    kind: str
    digest: str
    """of what was never finished the first twelve digits"""
    bytes: int
    created: float
    """Unix time; 0 for what was never finished"""
    runs: tuple[str, ...]
    """runs on record that made it, or of what was never finished reached it; none is kept"""

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.digest[:_SHORT]}"


@dataclass(slots=True)
class Survey:
    """What was found in a store."""

    kept: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """why, by the first twelve digits of a digest"""
    unneeded: list[Unneeded] = field(default_factory=list[Unneeded])
    uncertain: list[str] = field(default_factory=list[str])
    """what could not be found out: nothing may be deleted"""

    def keep(self, digest: str, why: str) -> None:
        reasons = self.kept.setdefault(digest[:_SHORT], [])
        if why not in reasons:
            reasons.append(why)


def survey(
    artifacts: ArtifactStore, keep_runs: int, aliases: list[AliasedArtifact] | None
) -> Survey:
    """What nothing needs. `aliases`: those of MLflow; None where it cannot be asked.

    Of a run that is not kept two files are read, of an artifact that is kept none, and of one that
    is not its manifest, which says how large it is and whose.
    """
    found, dropped = look_for_needs(artifacts, keep_runs, aliases)
    found.unneeded = list(_unneeded(artifacts, found, dropped))
    return found


def look_for_needs(
    artifacts: ArtifactStore, keep_runs: int, aliases: list[AliasedArtifact] | None
) -> tuple[Survey, Sequence[RunRecord]]:
    """What is needed alone, and the runs that keep nothing."""
    found = Survey()
    dropped: list[RunRecord] = []
    for record, is_kept in _runs(artifacts, keep_runs, found):
        if not is_kept:
            dropped.append(record)
            continue
        for short in (*_digests(record, found), *_named(record.head())):
            found.keep(short, f"run {record.run}")
    if aliases is None:
        found.uncertain.append("MLflow's aliases: the stack is down; `tributary up` starts it")
    for alias in aliases or []:
        found.keep(alias.digest, f"alias {alias.name}@{alias.alias}")
    try:
        for each in pins(artifacts.store):
            found.keep(each.digest, f"pinned{': ' + each.note if each.note else ''}")
    except DamagedRecord as error:
        found.uncertain.append(str(error))
    return found, dropped


def _runs(
    artifacts: ArtifactStore, keep_runs: int, found: Survey
) -> Iterator[tuple[RunRecord, bool]]:
    """Every run on record, whichever home started it, and whether it is kept."""
    records = [RunRecord(artifacts.store, name) for name in artifacts.store.listdir("runs")]
    with ThreadPoolExecutor(_READERS) as pool:
        looked = [each for each in pool.map(_look, records) if each is not None]
    seen: dict[str, int] = {}
    for each in sorted(looked, key=lambda look: look.created, reverse=True):
        seen[each.recipe] = seen.get(each.recipe, 0) + bool(each.created)
        is_kept = seen[each.recipe] <= keep_runs or each.is_live
        try:
            if not each.fault and is_kept:
                each.record.stages()
        except TributaryError as error:
            each.fault = str(error)
        if each.fault:
            found.uncertain.append(f"what run {each.record.run} needs: {each.fault}")
        else:
            yield each.record, is_kept


@dataclass(slots=True)
class _Look:
    """What a run's first two files say, of however many."""

    record: RunRecord
    recipe: str = ""
    created: float = 0.0
    """Unix time; 0 where it is not known"""
    is_live: bool = False
    fault: str = ""
    """why they could not be read"""


def _look(record: RunRecord) -> _Look | None:
    """None for a run of which a folder is all that is left."""
    look = _Look(record)
    try:
        head = record.head()
        look.recipe, look.created = str(head.recipe.get("name", "")), head.created
        look.is_live = record.state().state in _LIVE
    except InputError:
        return None
    except TributaryError as error:
        look.fault = str(error)
    return look


def _reached(record: RunRecord) -> list[str]:
    """Digests of the stages that a run has reached."""
    return [stage.digest for stage in record.stages().values() if stage.digest]


def _named(head: RunHead) -> set[str]:
    """First digits of the digests of artifacts that a run was told to use, wherever it says so."""
    return set(_IN_A_STORE.findall("\n".join(_texts([head.recipe, head.arguments]))))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, Any]", value).values():
            yield from _texts(each)
    elif isinstance(value, Sequence):
        for each in cast("Sequence[Any]", value):
            yield from _texts(each)


def _digests(record: RunRecord, found: Survey) -> list[str]:
    """The same, and of the stages that a running run will reach."""
    reached = _reached(record)
    if record.state().state not in _LIVE:
        return reached
    head = record.head()
    try:
        recipe = record.recipe()
        plan = plan_of(head.flow, recipe, head.arguments)
        user = install_hooks(read_hooks(recipe.hooks, recipe.data))
        return reached + [one.digest for one in planned_identities(plan, user).values()]
    except TributaryError as error:
        found.uncertain.append(f"what run {record.run} will need, which is running: {error}")
        return reached


def _unneeded(
    artifacts: ArtifactStore, found: Survey, dropped: Sequence[RunRecord]
) -> Iterator[Unneeded]:
    """What was never finished goes where a run that reached it is on record, and is not kept."""
    store, young = artifacts.store, time.time() - YOUNG_S
    left = removal.with_checkpoints(store)
    named = [each for each in artifacts.names() if each[1] not in found.kept]
    on_record = {record.run for record in dropped}
    read: set[tuple[str, str]] = set()
    made: list[Unneeded] = []
    for manifest in artifacts.manifests(named):
        short = manifest.digest[:_SHORT]
        read.add((manifest.kind, short))
        if manifest.created > young:
            found.keep(short, "younger than an hour")
            continue
        size = sum(file.size for file in manifest.files)
        if (manifest.kind, short) in left:
            size += removal.size_of_checkpoints(store, manifest.kind, short)
        runs = tuple({made_by(artifacts, artifacts.record(manifest)).run} & on_record)
        made.append(Unneeded(manifest.kind, manifest.digest, size, manifest.created, runs))
    yield from sorted(made, key=lambda each: each.created, reverse=True)
    unread = [each for each in {*named, *left} - read if each[1] not in found.kept]
    yield from _unfinished(store, sorted(unread), dropped)


def _unfinished(
    store: Store, named: Sequence[tuple[str, str]], dropped: Sequence[RunRecord]
) -> Iterator[Unneeded]:
    """Only where there are any do the stages of runs that are not kept have to be read."""
    unfinished = [each for each in named if not removal.is_finished(store, *each)]
    reached = _reached_by(dropped) if unfinished else {}
    for kind, short in unfinished:
        if short in reached:
            size = removal.size_of_unfinished(store, kind, short)
            yield Unneeded(kind, short, size, 0.0, tuple(reached[short]))


def _reached_by(runs: Sequence[RunRecord]) -> Mapping[str, Sequence[str]]:
    """Which runs reached a stage, by the first digits of its digest. A run whose records are
    damaged says nothing, so that what it left stays."""
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(_READERS) as pool:
        for record, digests in zip(runs, pool.map(_reached_if_known, runs), strict=True):
            for digest in digests:
                found.setdefault(digest[:_SHORT], []).append(record.run)
    return found


def _reached_if_known(record: RunRecord) -> list[str]:
    try:
        return _reached(record)
    except TributaryError:
        return []


def has_mlflow_records(home: Path) -> bool:
    """Whether an MLflow of this home may know aliases, although it does not run."""
    return (home / "mlflow").is_dir()
