"""Frees space: which artifacts something still needs; `tributary artifacts gc`, `pin` and `unpin`.

Needed are those of running runs (what they will reach included) and of the newest runs of each
recipe, those that the recipes and arguments of these runs name (a base, files, a judge), those that
an alias in MLflow points at, those that are pinned, and all that is younger than an hour: a run may
have begun that is not on record yet.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from flows.catalog import plan_of
from flows.command.app import CommandConsole, print_json, text_table
from flows.command.models.named_artifacts import locate_artifact, made_by
from flows.reasons import planned_identities
from flows.running.records import RunHead, RunRecord, store_to_show
from infra.errors import DamagedRecord, InputError, TributaryError
from infra.home import home
from infra.stack import load_stack
from infra.store import removal
from infra.store.artifacts import ArtifactStore
from infra.store.removal import pins
from infra.store.store import Store
from infra.tracking.rest import AliasedArtifact, aliased_artifacts
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
    """Return what nothing needs. `aliases`: those of MLflow; None where it cannot be asked.

    Of a completed run that is not kept two files are read, of an artifact that is kept none, and of
    one that is not its manifest, which says how large it is and whose.
    """
    found, dropped = look_for_needs(artifacts, keep_runs, aliases)
    found.unneeded = list(_unneeded(artifacts, found, dropped))
    return found


def look_for_needs(
    artifacts: ArtifactStore, keep_runs: int, aliases: list[AliasedArtifact] | None
) -> tuple[Survey, Sequence[RunRecord]]:
    """Return what is needed alone, and the runs that keep nothing."""
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
    """What a run's first two files say, of however many; of one that did not complete, its stages
    too: the job of a suspended one goes on."""

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
        state = record.state().state
        look.is_live = state in _LIVE or (state != "completed" and record.has_jobs)
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
    """Return the digests of the stages that a run has reached, and of those that a running run will
    reach."""
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
    """Return which runs reached a stage, by the first digits of its digest. A run whose records are
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


def pin(artifact: str, note: str, root: str, console: CommandConsole) -> int:
    artifacts, record = locate_artifact(artifact, root)
    removal.pin(artifacts.store, record, note)
    console.print(f"pinned {record.name}", markup=False, highlight=False)
    return 0


def unpin(artifact: str, root: str, console: CommandConsole) -> int:
    artifacts, record = locate_artifact(artifact, root)
    was_pinned = removal.unpin(artifacts.store, record)
    text = f"{record.name} is no longer pinned" if was_pinned else f"{record.name} was not pinned"
    console.print(text, markup=False, highlight=False)
    return 0


def collect(keep_runs: int, yes: bool, json: bool, root: str, console: CommandConsole) -> int:
    """Show what could go, and delete it if the person said so; -> exit code."""
    if keep_runs < 1:
        raise InputError(f"--keep-runs {keep_runs}: keep at least the newest run of each recipe")
    artifacts = ArtifactStore(store_to_show(root))
    found = survey(artifacts, keep_runs, _aliases())
    if not json:
        _show(found, artifacts.store.root, console)
    if yes:
        _require_certain(found)
        again, _ = look_for_needs(artifacts, keep_runs, _aliases())
        _require_certain(again)
        freed = _delete(artifacts, found.unneeded, again)
        if not json:
            console.print(f"deleted: {_size(freed)} are free", highlight=False)
    elif found.unneeded and not json:
        console.print("Nothing was deleted; --yes deletes it.")
    if json:
        print_json(_as_json(found, deleted=yes))
    return 0


def _require_certain(found: Survey) -> None:
    if found.uncertain:
        unknown = "\n  ".join(found.uncertain)
        raise InputError(f"nothing was deleted, as these are not known:\n  {unknown}")


def _delete(artifacts: ArtifactStore, wanted: Sequence[Unneeded], again: Survey) -> int:
    """Return what a second look still finds unneeded: a run may have begun since the first. ->
    bytes.
    """
    freed = 0
    for each in wanted:
        if each.digest[:12] not in again.kept:
            removal.remove(artifacts.store, home() / "cache", each.kind, each.digest)
            freed += each.bytes
    return freed


def _aliases() -> list[AliasedArtifact] | None:
    """None where MLflow may know some and does not run."""
    stack = load_stack()
    if stack is not None:
        return list(aliased_artifacts(stack.mlflow_uri))
    return None if (home() / "mlflow").is_dir() else []


def _show(found: Survey, store: str, console: CommandConsole) -> None:
    rows: list[list[str]] = []
    for each in found.unneeded:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created))
        runs = ", ".join(each.runs) or "none on record"
        rows.append([each.name, _size(each.bytes), made if each.created else "unfinished", runs])
    if rows:
        header = ["artifact", "size", "made", "of runs"]
        console.print(text_table(header, rows, f"unneeded in {store}"))
    kinds = Counter(why[0].partition(" ")[0] for why in found.kept.values())
    kept = ", ".join(f"{count} for {_KINDS.get(kind, kind)}" for kind, count in kinds.items())
    total = sum(each.bytes for each in found.unneeded)
    console.print(
        f"{len(found.unneeded)} unneeded, {_size(total)}; {len(found.kept)} kept"
        f"{' (' + kept + ')' if kept else ''}",
        highlight=False,
    )
    for line in found.uncertain:
        console.say(f"not known: {line}")


_KINDS = {"run": "runs", "alias": "aliases", "pinned": "pins", "pinned:": "pins",
          "younger": "their age of less than an hour"}  # fmt: skip


def _as_json(found: Survey, *, deleted: bool) -> dict[str, object]:
    return {
        "unneeded": [asdict(each) | {"name": each.name} for each in found.unneeded],
        "bytes": sum(each.bytes for each in found.unneeded),
        "kept": found.kept,
        "not_known": found.uncertain,
        "deleted": deleted,
    }


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"
