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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flows.catalog import plan_of
from flows.planned_digests import planned_identities
from flows.running.records import RunHead, RunRecord
from infra.errors import DamagedRecord, InputError, TributaryError
from infra.store.artifacts import ArtifactStore
from infra.store.pins import pins
from infra.store.removal import size_of, unfinished
from infra.tracking.aliases import AliasedArtifact
from infra.user_files import install_hooks, read_hooks

YOUNG_S = 3600.0
_SHORT = 12
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
    """runs on record that it belongs to, which are not kept"""

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
    """`aliases`: those of MLflow; None where it cannot be asked."""
    found = Survey()
    dropped: dict[str, list[str]] = {}
    for record, is_kept in _runs(artifacts, keep_runs, found):
        digests = _digests(record, found) if is_kept else _reached(record)
        for digest in digests:
            if is_kept:
                found.keep(digest, f"run {record.run}")
            else:
                dropped.setdefault(digest[:_SHORT], []).append(record.run)
        if is_kept:
            for short in _named(record.head()):
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
    found.unneeded = list(_unneeded(artifacts, found, dropped))
    return found


def _runs(
    artifacts: ArtifactStore, keep_runs: int, found: Survey
) -> Iterator[tuple[RunRecord, bool]]:
    """Every run on record, whichever home started it, and whether it is kept."""
    heads: list[tuple[RunRecord, RunHead]] = []
    for name in artifacts.store.listdir("runs"):
        record = RunRecord(artifacts.store, name)
        try:
            heads.append((record, record.head()))
        except InputError:  # its folder is all that is left of it
            continue
        except TributaryError as error:
            found.uncertain.append(f"what run {name} needs: {error}")
    seen: dict[str, int] = {}
    for record, head in sorted(heads, key=lambda pair: pair[1].created, reverse=True):
        recipe = str(head.recipe.get("name", ""))
        seen[recipe] = seen.get(recipe, 0) + 1
        try:
            is_live = record.state().state in _LIVE
            record.stages()
        except TributaryError as error:
            found.uncertain.append(f"what run {record.run} needs: {error}")
            continue
        yield record, seen[recipe] <= keep_runs or is_live


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
    artifacts: ArtifactStore, found: Survey, dropped: Mapping[str, list[str]]
) -> Iterator[Unneeded]:
    now = time.time()
    for record in artifacts.list():
        short = record.digest[:_SHORT]
        if record.created > now - YOUNG_S:
            found.keep(short, "younger than an hour")
        if short not in found.kept:
            size = size_of(artifacts.store, record.kind, record.digest)
            runs = tuple(dropped.get(short, ()))
            yield Unneeded(record.kind, record.digest, size, record.created, runs)
    for kind, short in unfinished(artifacts.store):
        if short not in found.kept and short in dropped:
            size = size_of(artifacts.store, kind, short)
            yield Unneeded(kind, short, size, 0.0, tuple(dropped[short]))


def has_mlflow_records(home: Path) -> bool:
    """Whether an MLflow of this home may know aliases, although it does not run."""
    return (home / "mlflow").is_dir()
