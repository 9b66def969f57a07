"""`tributary artifacts`: what the store has, who made it, and how it scored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import fmean

from rich.markup import escape
from rich.table import Table

from flows.command.made_by import Maker, made_by
from flows.command.output import CommandConsole, print_json
from flows.explain import nearest
from flows.plan import EVALUATE
from flows.running.records import RunRecord, find_run, store_to_show
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactRecord, ArtifactStore, Manifest
from tasks.registry import SPECS, is_own

_READERS = 16
"""asked at once: on S3 each waits for its answer"""
Scores = Mapping[str, Mapping[str, float]]
"""by digest: mean outcome by domain"""


def show_artifacts(run: str, kind: str, root: str, json: bool, console: CommandConsole) -> int:
    record = find_run(run) if run else None
    store = record.store if record and not root else store_to_show(root)
    artifacts = ArtifactStore(store, home() / "cache")
    listed, scores = _read(artifacts, _asked(artifacts, record, kind))
    meant = [made for made in listed if kind in ("", made.kind)]
    if not meant and kind and kind not in SPECS and not is_own(kind):
        hint = nearest(kind, SPECS) or f"; there are {', '.join(SPECS)}"
        raise InputError(f"--kind {kind}: is no kind of stage{hint}")
    with ThreadPoolExecutor(_READERS) as pool:
        makers = list(pool.map(partial(made_by, artifacts), meant))
    rows = list(zip(meant, makers, strict=True))
    if json:
        print_json(
            [
                {**made.model_dump(mode="json"), "run": maker.run, "stage": maker.stage}
                | {"scores": scores.get(made.digest, {})}
                for made, maker in rows
            ]
        )
        return 0
    console.print(_table(rows, scores, store.root))
    return 0


def _asked(
    artifacts: ArtifactStore, record: RunRecord | None, kind: str
) -> Sequence[tuple[str, str]]:
    """What to show, and the evaluations that score it: a run's own, where a run is asked for."""
    kinds = sorted({kind, EVALUATE}) if kind else []
    if record is None:
        return artifacts.names(*kinds)
    stages = [stage for stage in record.stages().values() if stage.digest]
    named = dict.fromkeys((stage.kind, stage.digest[:12]) for stage in stages)
    return [each for each in named if not kinds or each[0] in kinds]


def _read(
    artifacts: ArtifactStore, named: Sequence[tuple[str, str]]
) -> tuple[Sequence[ArtifactRecord], Scores]:
    """Newest first, with what the newest evaluation of each model says of it, in the domains that
    it was trained for. Each manifest is read once."""
    found: list[ArtifactRecord] = []
    told: dict[str, tuple[float, Mapping[str, float]]] = {}
    for manifest in artifacts.manifests(named):
        found.append(artifacts.record(manifest))
        for name, digest in manifest.inputs.items() if manifest.kind == EVALUATE else ():
            row, known = _row(manifest, name), told.get(digest)
            if row and (known is None or known[0] < manifest.created):
                told[digest] = (manifest.created, row)
    newest_first = sorted(found, key=lambda record: record.created, reverse=True)
    return newest_first, {digest: row for digest, (_, row) in told.items()}


def _row(manifest: Manifest, model: str) -> dict[str, float]:
    begin = f"score/{model}/"
    row = {k.removeprefix(begin): v for k, v in manifest.metrics.items() if k.startswith(begin)}
    own = set(manifest.identity.get("home", {}).get(model, ()))
    return {domain: score for domain, score in row.items() if domain in own} or row


def _table(rows: Iterable[tuple[ArtifactRecord, Maker]], scores: Scores, root: str) -> Table:
    table = Table(title=root)
    # What is there to be copied is whole: other columns give way to it.
    for header, whole in (
        ("digest", True), ("run", True), ("stage", True), ("kind", False), ("score", False),
        ("made (UTC)", False), ("took", False), ("where", False),
    ):  # fmt: skip
        table.add_column(header, no_wrap=whole, overflow="fold")
    for made, maker in rows:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(made.created))
        score = scores.get(made.digest)
        shown = "" if not score else f"{fmean(score.values()):.3f}"
        cells = (made.digest[:12], maker.run, maker.stage, made.kind, shown)
        table.add_row(*map(escape, cells), when, f"{made.seconds:.1f} s", escape(made.url))
    return table
