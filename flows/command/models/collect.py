"""`tributary artifacts gc`, `pin` and `unpin`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from flows.command.find_artifact import locate_artifact
from flows.command.models.needed import (
    Survey,
    Unneeded,
    has_mlflow_records,
    look_for_needs,
    survey,
)
from flows.command.output import print_json, text_table
from flows.running.records import store_to_show
from infra.errors import InputError
from infra.home import home
from infra.stack import load_stack
from infra.store import pins, removal
from infra.store.artifacts import ArtifactStore
from infra.tracking.aliases import AliasedArtifact, aliased_artifacts


def pin(artifact: str, note: str, root: str, console: Console) -> int:
    artifacts, record = locate_artifact(artifact, root)
    pins.pin(artifacts.store, record, note)
    console.print(f"pinned {record.name}", markup=False, highlight=False)
    return 0


def unpin(artifact: str, root: str, console: Console) -> int:
    artifacts, record = locate_artifact(artifact, root)
    was_pinned = pins.unpin(artifacts.store, record)
    text = f"{record.name} is no longer pinned" if was_pinned else f"{record.name} was not pinned"
    console.print(text, markup=False, highlight=False)
    return 0


def collect(keep_runs: int, yes: bool, json: bool, root: str, console: Console) -> int:
    """Show what could go, and delete it if the person said so; -> exit code."""
    if keep_runs < 1:
        raise InputError(f"--keep-runs {keep_runs}: keep at least the newest run of each recipe")
    artifacts = ArtifactStore(store_to_show(root), home() / "cache")
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
    """What a second look still finds unneeded: a run may have begun since the first. -> bytes."""
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
    return None if has_mlflow_records(home()) else []


def _show(found: Survey, store: str, console: Console) -> None:
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
        console.print(f"not known: {line}", markup=False, highlight=False, soft_wrap=True)


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
