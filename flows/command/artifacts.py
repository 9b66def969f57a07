"""Finds an artifact or a model as a person names it; `tributary artifacts` lists them, with who
made each and its score.

3f09c2, rl/3f09c2            the beginning of a digest, alone or after its kind
agent-rl                     a stage of the latest run
cpu-demo/agent-rl            a stage of a run: its id, its name, or its recipe (the latest run)
@best, cpu-demo-agent@best   an alias in MLflow, of the latest run's model or of the one named
DIR, s3://bucket/model, hf:org/name@revision      an HF folder
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean

from rich.markup import escape
from rich.table import Table

from flows.command.output import CommandConsole, print_json
from flows.explain import nearest
from flows.plan import EVALUATE
from flows.running.records import (
    RunRecord,
    find_run,
    run_entries,
    store_at,
    store_of,
    store_to_show,
)
from infra.errors import InfrastructureError, InputError, TributaryError
from infra.home import home
from infra.hub import hub_hint, is_hub_name, snapshot
from infra.stack import load_stack
from infra.store.artifacts import ArtifactRecord, ArtifactStore, Manifest
from infra.store.evicted import evict, hold, limit_bytes
from infra.tracking.aliases import aliased_artifact
from tasks.durable.claims import Claims
from tasks.durable.protocol import job_path
from tasks.model_folder.files import ModelFiles, beside
from tasks.registry import SPECS, is_own


@dataclass(frozen=True, slots=True)
class Maker:
    """Empty where the store does not say."""

    run: str = ""
    stage: str = ""


def made_by(artifacts: ArtifactStore, record: ArtifactRecord) -> Maker:
    """By its manifest; where that was written before manifests said so, by the claim of the attempt
    whose files it has."""
    if record.run:
        return Maker(record.run, record.stage)
    attempt = int(record.url.rpartition("/a")[2])
    store = artifacts.store
    try:
        owner = Claims(store, record.kind, record.digest).read(attempt).owner
        stage = json.loads(store.read(job_path(owner.job)))["stage"]
    except (FileNotFoundError, TributaryError, ValueError, TypeError, KeyError):
        return Maker()
    return Maker(owner.run, stage)


_DIGITS = re.compile(r"[0-9a-f]{1,64}")
_NAMED = 12
"""digits of a digest that the name of an artifact's folder has"""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model folder on this machine, and where it comes from."""

    name: str
    """what a person called it"""
    folder: Path
    record: ArtifactRecord | None = None
    """None for a folder that is no artifact"""
    artifacts: ArtifactStore | None = None
    """the store that has the artifact"""


def find_artifact(artifacts: ArtifactStore, wanted: str) -> ArtifactRecord:
    """By the beginning of a digest, or by a stage of the latest run, or of a run that is named.

    Raises InputError.
    """
    found = list(islice(_beginning_with(artifacts, wanted), 2))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"several artifacts begin with {wanted}: give more of the digest")
    run, _, name = wanted.rpartition("/")
    stage = find_run(run).stage(name)
    made = artifacts.find(stage.kind, stage.digest) if stage and stage.digest else None
    if made is None:
        raise InputError(
            f"no artifact `{wanted}` in {artifacts.store.root}; see `tributary artifacts`"
        )
    return made


def _beginning_with(artifacts: ArtifactStore, wanted: str) -> Iterator[ArtifactRecord]:
    """Names are listed, and only the manifests of those that match are read."""
    kind, _, beginning = wanted.rpartition("/")
    if not _DIGITS.fullmatch(beginning):
        return
    for of_kind, short in artifacts.names(*filter(None, [kind])):
        if short.startswith(beginning[:_NAMED]):
            for manifest in artifacts.manifests([(of_kind, short)]):
                if manifest.digest.startswith(beginning):
                    yield artifacts.record(manifest)


def find_model(model: str, root: str) -> Path:
    """The folder of a model that a person named; `root` is the store of an artifact (the latest
    run's, if empty). Raises InputError."""
    return find_named_model(model, root).folder


def find_named_model(model: str, root: str) -> NamedModel:
    """The same, with the artifact that it is. Raises InputError; StorageError if it is out of
    reach."""
    found = _found(model, root)
    if not (found.folder / "config.json").is_file():
        what = f"`{model}` is no model; give an HF folder"
        raise InputError(f"{found.folder} has no config.json: {what}")
    return found


def _found(model: str, root: str) -> NamedModel:
    if is_hub_name(model):
        return NamedModel(model, snapshot(model))
    path = Path(model).expanduser()
    if path.is_dir():
        return NamedModel(model, path.resolve())
    if "://" in model:
        return NamedModel(model, _fetched(model))
    artifacts, record = _artifact(model, root, model)
    return NamedModel(model, artifacts.local(record).resolve(), record, artifacts)


def _artifact(model: str, root: str, written: str) -> tuple[ArtifactStore, ArtifactRecord]:
    if model.startswith(("./", "../", "/", "~")):
        raise InputError(
            f"{written}: there is no such folder; the path is relative to {Path.cwd()}"
        )
    try:
        return locate_artifact(model, root)
    except InputError as error:
        told = f"{written}: is no folder, and no artifact: {error}{hub_hint(model)}"
        raise InputError(told) from None


def locate_artifact(wanted: str, root: str) -> tuple[ArtifactStore, ArtifactRecord]:
    """The artifact of any of the names above but a folder's, and its store. Raises InputError."""
    name, at, alias = wanted.rpartition("@")
    if at:
        return _aliased(name or _only_model(wanted), alias)
    run = wanted.rpartition("/")[0]
    known = [entry for entry in run_entries() if run and entry.is_called(run)]
    store = store_of(known[0].storage) if known and not root else store_to_show(root)
    artifacts = ArtifactStore(store, home() / "cache")
    return artifacts, find_artifact(artifacts, wanted)


def model_place(model: str, root: str) -> str:
    """What a recipe's `base.folder` says of a model that a person named. Raises InputError."""
    is_place = "://" in model or model.startswith("$") or is_hub_name(model)
    if is_place or Path(model).expanduser().is_dir():
        return beside(model, Path.cwd())
    return _artifact(model, root, f"--model {model}")[1].url


def _aliased(name: str, alias: str) -> tuple[ArtifactStore, ArtifactRecord]:
    stack = load_stack()
    if stack is None:
        raise InfrastructureError(
            f"{name}@{alias} is an alias in MLflow, and the local stack is down: start it with"
            " `tributary up`, or name the artifact by its digest"
        )
    found = aliased_artifact(stack.mlflow_uri, name, alias)
    if found is None:
        raise InputError(
            f"MLflow has no model {name} with the alias `{alias}`; models are called"
            " RECIPE-EXPERT or RECIPE-unified, and each run that ends sets the aliases best, sft,"
            f" rl ...: {stack.mlflow_uri}/#/models"
        )
    artifacts = ArtifactStore(store_at(found.root), home() / "cache")
    for record in _beginning_with(artifacts, found.digest):
        return artifacts, record
    raise InputError(
        f"{name}@{alias} is artifact {found.digest[:12]}, which is no longer in {found.root}; run"
        " the recipe again"
    )


def _only_model(wanted: str) -> str:
    """The registered model that an alias alone means: the latest run's unified model or its only
    expert."""
    recipe = find_run().recipe()
    names = ["unified"] if recipe.unified is not None else list(recipe.experts)
    if len(names) > 1:
        choice = ", ".join(f"{recipe.name}-{name}{wanted}" for name in names)
        raise InputError(f"{wanted}: the latest run made several models; give one of {choice}")
    return f"{recipe.name}-{names[0]}"


def _fetched(url: str) -> Path:
    """A copy of a model folder elsewhere; the same one while names and sizes stay the same."""
    files = ModelFiles(url)
    listed = json.dumps([url, sorted(files.sizes.items())])
    copy = home() / "cache" / "models" / hashlib.sha256(listed.encode()).hexdigest()[:16]
    is_new = not copy.exists()
    hold(copy)
    for name, size in files.sizes.items():
        copy.mkdir(parents=True, exist_ok=True)
        if not (copy / name).is_file() or (copy / name).stat().st_size != size:
            files.copy(name, copy)
    if is_new:
        evict(home() / "cache", limit_bytes())
    return copy


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
