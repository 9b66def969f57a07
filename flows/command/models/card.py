"""Writes the model card of an exported model: what it is, what it was made from, how good it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flows.catalog import plan_of
from flows.command.models.named_artifacts import NamedModel
from flows.load import as_yaml
from flows.recipe import Recipe
from flows.reports.report import build_report
from flows.running.records import RunRecord, find_run, run_entries, store_of
from infra.data_files.packaged import is_packaged
from infra.errors import TributaryError
from infra.hub import MOST_FRONT, front_matter, is_hub_name
from infra.shown_text import markdown_block, markdown_code, markdown_text
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import Manifest

_FILES = ("hooks", "data", "files")
"""fields of a recipe that list files"""
_SERVED = "served.model"
_FOLDERS = ("folder", _SERVED)
"""fields that name a model, a stage or a folder; a name without a `/` is its own last part"""
_SERVERS = ("external",)
"""fields of a recipe that list addresses"""
CARD, LINEAGE = "README.md", "lineage.json"
UNKNOWN_LICENCE = "unknown"


@dataclass(frozen=True, slots=True)
class Origin:
    """The stage of a run that made an artifact, or found it made."""

    run: str
    stage: str
    recipe: Mapping[str, Any]
    """what its author wrote, without defaults and without where it ran"""
    scored_as: str = ""
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """by domain: mean outcome at temperature 1"""
    greedy: Mapping[str, float] = field(default_factory=dict[str, float])
    intervals: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    """95% intervals of `scores`"""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An artifact of the lineage; `manifest` is None where the store does not have it any more."""

    digest: str
    role: str
    """what it was to the one made from it: `model`, a teacher's name, ...; empty: itself"""
    manifest: Manifest | None


def lineage_of(artifacts: ArtifactStore, kind: str, digest: str) -> list[Ancestor]:
    """The artifact itself first, then what it was made from, each once."""
    kinds = {short: of_kind for of_kind, short in artifacts.names()}
    found: dict[str, Ancestor] = {}
    ahead = [("", kind, digest)]
    while ahead:
        role, of_kind, wanted = ahead.pop(0)
        if wanted in found:
            continue
        manifest = artifacts.manifest(of_kind, wanted) if of_kind else None
        found[wanted] = Ancestor(wanted, role, manifest)
        inputs = manifest.inputs if manifest else {}
        ahead += [(role, kinds.get(digest[:12], ""), digest) for role, digest in inputs.items()]
    return list(found.values())


def origin_of(model: NamedModel) -> Origin | None:
    """The run that is named, if a run was, else the newest one of this home that has the artifact;
    None where there is none."""
    if model.record is None or model.artifacts is None:
        return None
    for record in _runs(model.name, model.artifacts.store.root):
        try:
            stages = record.stages().values()
        except TributaryError:
            continue
        for stage in stages:
            if stage.digest == model.record.digest:
                return _origin(record, stage.name)
    return None


def _runs(name: str, root: str) -> Iterator[RunRecord]:
    run = name.rpartition("/")[0]
    entries = run_entries()
    if run and any(entry.is_called(run) for entry in entries):
        yield find_run(run)
    for entry in entries:
        try:
            store = store_of(entry.storage)
            record = RunRecord(store, entry.run)
            is_there = store.root == root and record.exists
        except TributaryError:  # another store may be out of reach
            continue
        if is_there:
            yield record


def _origin(record: RunRecord, stage: str) -> Origin:
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    recipe = recipe_for_strangers(record.recipe())
    planned = next((p for p in plan if p.name == stage), None)
    scored_as = planned.scored_as or stage if planned else stage
    try:
        report = build_report(record, plan)
    except TributaryError:  # its evaluation is gone: the model is still a model
        return Origin(head.run, stage, recipe, scored_as)
    return Origin(
        head.run,
        stage,
        recipe,
        scored_as,
        report.scores.get(scored_as, {}),
        report.greedy.get(scored_as, {}),
        report.intervals.get("scores", {}).get(scored_as, {}),
    )


def recipe_for_strangers(recipe: Recipe) -> dict[str, Any]:
    """Return what its author wrote, without paths and addresses of the machines that it ran on:
    those are their owner's business."""
    where = {"storage", "tracking", "resources"}
    return _without_places(recipe.model_dump(mode="json", exclude_defaults=True, exclude=where))


def _without_places(value: Any, field: str = "") -> Any:
    """Keep the names alone of the user's own files and folders, and nothing of servers."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in _SERVERS}
        return {
            key: _without_places(item, _SERVED if (field, key) == ("served", "model") else key)
            for key, item in kept.items()
        }
    if isinstance(value, list):
        return [_without_places(each, field) for each in value]
    if not isinstance(value, str):
        return value
    is_folder = field in _FOLDERS and not (is_hub_name(value) or is_packaged(value))
    return value.rstrip("/").rpartition("/")[2] if is_folder or field in _FILES else value


def licence_of(folder: Path) -> str:
    """Return the licence as the card that came with the model says, e.g. `apache-2.0`; `unknown`
    where none does."""
    path = folder / CARD
    if not path.is_file():
        return UNKNOWN_LICENCE
    with path.open(errors="replace") as text:
        card_text = text.read(MOST_FRONT)
    try:
        head = front_matter(card_text)
    except ValueError:
        head = None
    named = head.get("license") if isinstance(head, dict) else None
    return named if isinstance(named, str) else UNKNOWN_LICENCE


def lineage_content(lineage: Sequence[Ancestor], origin: Origin | None) -> dict[str, Any]:
    """Return what `lineage.json` holds."""
    return {
        "artifacts": [_ancestor(ancestor) for ancestor in lineage],
        "run": None
        if origin is None
        else {
            "run": origin.run,
            "stage": origin.stage,
            "recipe": origin.recipe,
            "scored_as": origin.scored_as,
            "scores": origin.scores,
            "greedy": origin.greedy,
            "intervals": origin.intervals,
        },
    }


def _ancestor(ancestor: Ancestor) -> dict[str, Any]:
    told: dict[str, Any] = {"digest": ancestor.digest, "role": ancestor.role}
    if (manifest := ancestor.manifest) is None:
        return told | {"missing": "its manifest is not in the store any more"}
    return told | manifest.model_dump(mode="json", exclude={"files", "digest", "code"}) | {
        "code": {name: manifest.code.get(name) for name in ("hash", "version", "commit", "dirty")},
        "files": {file.path: file.sha256 for file in manifest.files},
    }  # fmt: skip


def card(
    name: str,
    config: Mapping[str, Any],
    licence: str,
    lineage: Sequence[Ancestor],
    origin: Origin | None,
) -> str:
    """The text of the model card."""
    head = {"license": licence, "library_name": "transformers", "pipeline_tag": "text-generation"}
    if licence == UNKNOWN_LICENCE:
        head.pop("license")
    lines = [
        "---", yaml.safe_dump({**head, "tags": ["tributary"]}, sort_keys=False).strip(), "---",
        "", f"# {markdown_text(name)}", "", *_what(config, lineage, origin), "", *_load(), "",
        *_scores(origin), *_licence(licence), "", *_lineage(lineage), "", *_recipe(origin),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _what(
    config: Mapping[str, Any], lineage: Sequence[Ancestor], origin: Origin | None
) -> Iterator[str]:
    own = lineage[0].manifest if lineage else None
    named = config.get("architectures")
    architectures = named if isinstance(named, list) else []
    architecture = ", ".join(map(str, architectures)) or str(config.get("model_type"))
    made = f" by a stage of kind {markdown_code(own.kind)}" if own else ""
    yield f"A {markdown_text(architecture)}, post-trained with Tributary{made}."
    if origin is not None:
        yield f"Run {markdown_code(origin.run)}, stage {markdown_code(origin.stage)}."


def _load() -> Iterator[str]:
    yield "## How to load it"
    yield ""
    yield "```python"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield ""
    yield 'folder = "."  # this folder, or the name of the model on a hub'
    yield "tokenizer = AutoTokenizer.from_pretrained(folder)"
    yield 'model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")'
    yield "```"
    yield ""
    yield "Or serve it: `tributary serve FOLDER`."


def _scores(origin: Origin | None) -> Iterator[str]:
    if origin is None or not origin.scores:
        return
    yield "## Scores"
    yield ""
    yield "Mean outcome on the recipe's held-out problems, 0 to 1, with 95% intervals."
    yield ""
    yield "| domain | temperature 1 | 95% interval | greedy |"
    yield "|---|---|---|---|"
    for domain, score in origin.scores.items():
        low_high = origin.intervals.get(domain)
        interval = f"{low_high[0]:.3f} to {low_high[1]:.3f}" if low_high else ""
        greedy = f"{origin.greedy[domain]:.3f}" if domain in origin.greedy else ""
        yield f"| {markdown_text(domain)} | {score:.3f} | {interval} | {greedy} |"
    yield ""


def _licence(licence: str) -> Iterator[str]:
    yield "## Licence"
    yield ""
    if licence == UNKNOWN_LICENCE:
        yield "Not stated. The licence of the base model and of the data apply."
    else:
        theirs = "The licence of the base model and of the data apply as well."
        yield f"{markdown_code(licence)}. {theirs}"


def _lineage(lineage: Sequence[Ancestor]) -> Iterator[str]:
    yield "## Lineage"
    yield ""
    if not lineage:
        yield "Made from a folder that no Tributary stage made; nothing is known of its origin."
        return
    yield f"From this model back to its base; `{LINEAGE}` has every setting, seed and checksum."
    yield ""
    yield "| artifact | as | settings, code | libraries |"
    yield "|---|---|---|---|"
    for ancestor in lineage:
        role = markdown_text(ancestor.role or "this model")
        if (manifest := ancestor.manifest) is None:
            yield f"| {ancestor.digest[:12]} | {role} | not in the store any more | |"
        else:
            short = f"{manifest.kind}/{manifest.digest[:12]}"
            made = f"{markdown_text(_seeds(manifest))} | {markdown_text(_libraries(manifest))}"
            yield f"| {markdown_text(short)} | {role} | {made} |"


def _seeds(manifest: Manifest) -> str:
    commit = str(manifest.code.get("commit") or "")[:12] or "no commit"
    dirty = ", changed since" if manifest.code.get("dirty") else ""
    seeds = ", ".join(f"{name} {seed}" for name, seed in manifest.seeds.items())
    return f"{seeds or 'no seed'}; {commit}{dirty}"


def _libraries(manifest: Manifest) -> str:
    names = ("torch", "megatron-core", "sglang", "transformers")
    return ", ".join(f"{n} {manifest.libraries[n]}" for n in names if n in manifest.libraries)


def _recipe(origin: Origin | None) -> Iterator[str]:
    if origin is None:
        return
    yield "## Recipe"
    yield ""
    recipe = as_yaml(json.loads(json.dumps(origin.recipe))).strip()
    yield markdown_block(recipe, "yaml")
