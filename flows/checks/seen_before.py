"""Held-out questions that stand in the conversations which a model has learned from.

A score on them tells what was learned by heart. Looked at are the files of the recipe's own stages
and those of the stages that made its base, where that is an artifact of a store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.plan import PlannedStage
from flows.recipe import Recipe
from flows.running.records import store_at
from infra.data_files.bad_row import BadRow
from infra.errors import TributaryError
from infra.home import home
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import Manifest
from tasks.domain import Domain
from tasks.message_files.spec import MessageFiles
from tasks.sft.spec import SftSpec

_WHOLE = 10**9
"""words of a question: more than any has, so that only whole ones are compared"""
_SECONDS = 10.0
"""most that is spent on reading the files of a stage"""


def seen_before_cautions(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """A sentence for each source of conversations that holds what a domain holds out."""
    domains = [domain for domain in recipe.domains if domain.curriculum.name == "files"]
    if not domains:
        return
    sources = [*_own_sources(plan), *_sources_of_base(recipe.base.folder or "")]
    for where, source, advice in sources:
        for domain in domains:
            try:
                said = _said(source, domain)
            except (TributaryError, ValueError):  # what is wrong with the files is said elsewhere
                continue
            if said:
                yield f"{where}: {said}: scores on them tell what was learned by heart; {advice}"


def _own_sources(plan: Sequence[PlannedStage]) -> Iterator[tuple[str, MessageFiles, str]]:
    for stage in plan:
        if isinstance(stage.spec, SftSpec) and not stage.spec.settings.decontaminate:
            for source in stage.spec.message_files:
                advice = f"set {stage.where}.decontaminate: 13, which leaves such rows out"
                yield f"{stage.where}.data", source, advice


def _sources_of_base(folder: str) -> Iterator[tuple[str, MessageFiles, str]]:
    """The conversations of the stages that made an artifact; none for another folder."""
    root, _, rest = folder.rpartition("/artifacts/")
    parts = rest.strip("/").split("/")
    if not root or len(parts) != 3:
        return
    try:
        artifacts = ArtifactStore(store_at(root), home() / "cache")
        found = list(_made_from(artifacts, parts[0], parts[1]))
    except TributaryError:
        return
    for manifest in found:
        settings: Any = manifest.identity.get("settings")
        given: Any = settings.get("data") if isinstance(settings, Mapping) else None
        for each in given if isinstance(given, list) and not settings.get("decontaminate") else ():
            try:
                source = MessageFiles.model_validate(each)
            except ValidationError:  # of another version
                continue
            name = f"base, made by {manifest.stage or manifest.kind} of {manifest.run or 'a run'}"
            yield name, source, "hold out other rows, or train the base without these"


def _made_from(artifacts: ArtifactStore, kind: str, short: str) -> Iterator[Manifest]:
    """The artifact's manifest, and those of what it was made from that are in its store."""
    kinds = {each: of_kind for of_kind, each in artifacts.names()}
    ahead, known = [(kind, short)], set[str]()
    while ahead:
        of_kind, wanted = ahead.pop()
        found = [] if wanted in known else artifacts.manifests([(of_kind, wanted)])
        known.add(wanted)
        for manifest in found:
            yield manifest
            inputs = (digest[:12] for digest in manifest.inputs.values())
            ahead += [(kinds[each], each) for each in inputs if each in kinds]


def _said(source: MessageFiles, domain: Domain) -> str:
    """How many of the domain's held-out questions the files ask, with the first; empty for none."""
    from curricula.prompt_files.contamination import HeldOutWords
    from curricula.prompt_files.curriculum import Files

    held_out, found = HeldOutWords(_WHOLE), dict[str, str]()
    Files(**domain.curriculum.options).add_held_out(held_out)
    for where, asked in _questions(source):
        if shared := held_out.shared_with(asked):
            found.setdefault(shared[1], where)
    if not found:
        return ""
    name, where = next(iter(found.items()))
    return (
        f"{len(found)} of the {len(held_out)} held-out questions of domain {domain.name} stand in"
        f" its rows, e.g. {name} in {where}"
    )


def _questions(source: MessageFiles) -> Iterator[tuple[str, str]]:
    """What users say in the rows, with file and line; of large files as far as time goes."""
    from curricula.rows.layouts import read_row
    from infra.data_files.chunks import LocalFiles
    from infra.data_files.files import find_files
    from infra.processes.leftovers import temporary_folder

    ends = time.monotonic() + _SECONDS
    with temporary_folder() as copies:
        files = LocalFiles(find_files(source.files), Path(copies))
        for chunk in files.chunks:
            rows = files.read(chunk)
            for index in range(len(rows)):
                if time.monotonic() > ends:
                    return
                try:
                    read = read_row(rows.row(index), source.columns, source.format)
                except BadRow:
                    continue
                where = f"{files.names[chunk.file]}:{rows.line(index)}"
                yield from ((where, m.content) for m in read.messages if m.role == "user")
