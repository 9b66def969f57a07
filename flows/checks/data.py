"""Checks the user's own conversations: the first rows, rendered for the base, and held-out
questions among them.

A score on them tells what was learned by heart. Looked at are the files of the recipe's own stages
and those of the stages that made its base, where that is an artifact of a store.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from engines.families.common.model_config import usable_positions
from flows.checks.engines import model_config, positions_of
from flows.plan import PlannedStage
from flows.recipe import Recipe
from flows.running.records import store_at
from infra.data_files.rows import BadRow, Reason, by_fault
from infra.errors import InputError, StorageError, TributaryError
from infra.processes.leftovers import temporary_folder
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import Manifest
from tasks.base.spec import BaseSettings
from tasks.distill.spec import DistillSpec
from tasks.domain import Domain
from tasks.message_files.spec import MessageFiles, RowFiles
from tasks.mid_training.spec import TextFiles
from tasks.model_folder.folder_report import template_text
from tasks.model_folder.model_files import local_folder
from tasks.preference.row_faults import fault_beside
from tasks.rl.spec import RlSpec
from tasks.sft.spec import SftSpec

if TYPE_CHECKING:
    from tasks.message_files.render_rows import Renderer


_ROWS, _FILES = 50, 20
"""rows of each file and files of each source that are looked at"""
_NAMED = 3
_WHOLE = 10**9
"""words of a question: more than any has, so that only whole ones are compared"""
_SECONDS = 10.0
"""most that is spent on reading the files of a stage"""


@dataclass(slots=True)
class _FirstRows:
    """Counts what became of a source's first rows."""

    read: int = 0
    without_thought: int = 0
    """rows that show none, where the template opens one in every turn"""
    are_all: bool = True
    bad: Counter[str] = field(default_factory=Counter[str])
    named: list[str] = field(default_factory=list[str])
    empty: list[str] = field(default_factory=list[str])
    """files without a row"""
    choices: list[str] = field(default_factory=list[str])
    """where a folder holds more than what is read"""
    layouts: Counter[str] = field(default_factory=Counter[str])
    """rows by what they look like"""
    unread: set[str] = field(default_factory=set[str])
    """columns, and fields inside them, that nothing reads"""
    speakers: set[str] = field(default_factory=set[str])
    """roles of the messages of good rows"""

    @property
    def said(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.bad.most_common())
        return f"{self.bad.total()} of {self.which} {self.read} rows ({reasons}): " + "; ".join(
            by_fault(self.named[:_NAMED])
        )

    @property
    def which(self) -> str:
        return "all" if self.are_all else "the first"


def message_file_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Files that are missing or cannot be read, sources whose rows are mostly bad, and answers
    without thinking for a template that has no switch."""
    for stage in plan:
        spec = stage.spec
        if isinstance(spec, SftSpec | DistillSpec | RlSpec) and spec.settings.nothink_share:
            # A random base has a template of ours, which has a switch.
            renderer = renderer_of(recipe.base) if recipe.base.random is None else None
            try:
                if renderer is not None:
                    renderer.chat.require_thinking_switch()
            except InputError as error:
                yield f"{stage.where}.nothink_share: {error}"
    for where, source, positions in _sources(recipe, plan):
        found = _first_rows(source, recipe.base, positions)
        if isinstance(found, str):
            yield f"{where}.{found}"
        elif not found.read:
            yield f"{where}.files: no row in {', '.join(source.files)}"
        elif _is_refused(found, source):
            yield f"{where}: cannot be trained on: {found.said}. {_repair(found, source)}"


def message_file_cautions(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Parts of folders and columns that are not read; bad rows among the first, where the stage
    may still bear them."""
    for where, source, positions in _sources(recipe, plan):
        found = _first_rows(source, recipe.base, positions)
        if isinstance(found, str):
            continue
        yield from (f"{where}.files: {choice}" for choice in found.choices)
        if found.empty and found.read:
            yield f"{where}.files: without a row: {', '.join(found.empty)}"
        if found.without_thought:
            yield (
                f"{where}: {found.without_thought} of {found.read} rows show no thought, and the"
                " base's chat template opens one in every turn: their answers are trained after"
                " another header than the one that the model is asked with later; give them"
                " thoughts (`reasoning_content`)"
            )
        if found.bad and not _is_refused(found, source):
            yield f"{where}: will be left out: {found.said}"
        if found.unread:
            looks, names = " or ".join(found.layouts), ", ".join(sorted(found.unread))
            yield f"{where}: read as {looks}; not read: {names}"
        roles = source.roles or [] if isinstance(source, TextFiles) else []
        if found.layouts and (silent := [role for role in roles if role not in found.speakers]):
            yield (
                f"{where}.roles: {', '.join(silent)}: no message of {found.which} {found.read} rows"
                " is of such a role"
            )


def _is_refused(found: _FirstRows, source: RowFiles) -> bool:
    bad = found.bad.total() - found.bad[Reason.UNDECIDED]
    return 2 * bad > found.read or (found.are_all and bad > source.max_bad_share * found.read)


def _repair(found: _FirstRows, source: RowFiles) -> str:
    told = "Correct or remove these rows; `tributary preview FILE --model MODEL` lists them"
    if 2 * found.bad.total() > found.read:
        return f"{told}, and `columns` names the files' columns"
    return f"{told}. Or raise max_bad_share, the share of rows that may be: {source.max_bad_share}"


def _sources(
    recipe: Recipe, plan: list[PlannedStage]
) -> Iterator[tuple[str, RowFiles, int | None]]:
    """Where each is named, and how many positions the model has that learns it."""
    for stage in plan:
        sources = stage.spec.message_files
        positions = positions_of(recipe, plan, stage) if sources else None
        for number, source in enumerate(sources):
            where = f"{stage.where}.data" + (f".{number}" if len(sources) > 1 else "")
            yield where, source, positions


def _first_rows(source: RowFiles, base: BaseSettings, positions: int | None) -> _FirstRows | str:
    return _read(type(source), source.model_dump_json(), base.model_dump_json(), positions)


@cache  # problems and cautions ask for the same
def _read(
    kind: type[RowFiles], source_json: str, base_json: str, positions: int | None
) -> _FirstRows | str:
    source, base = (
        kind.model_validate_json(source_json),
        BaseSettings.model_validate_json(base_json),
    )
    try:
        return _looked_at(source, renderer_of(base, positions))
    except (InputError, StorageError) as error:
        return str(error)


def _looked_at(source: RowFiles, renderer: Renderer | None) -> _FirstRows:
    from infra.data_files.chunks import first_rows
    from infra.data_files.files import choices_of, find_files

    files, rendered = find_files(source.files), renderer and source.renderer(renderer)
    found = _FirstRows(choices=choices_of(files))
    found.are_all = len(files) <= _FILES
    for file in files[:_FILES]:
        rows, are_all = first_rows(file, _ROWS)
        found.are_all &= are_all
        found.empty += [] if len(rows) else [file.name]
        for index in range(len(rows)):
            found.read += 1
            try:
                said = source.conversations(rows.row(index))
                if rendered is not None:
                    made = [rendered.render(conversation) for conversation in said]
                    names = [f"answer {at + 1}" for at in range(len(made))]
                    if len(made) > 1 and (fault := fault_beside(names, made)):
                        raise BadRow(Reason.TEMPLATE, fault)
                    found.without_thought += any(map(rendered.lacks_thought, said))
                found.layouts[said[0].layout] += 1
                found.speakers |= {message.role for message in said[0].messages}
                found.unread |= said[0].unread
            except BadRow as error:
                found.bad[error.reason] += 1
                found.named.append(f"{file.name}:{rows.line(index)}: {error}")
    return found


def renderer_of(base: BaseSettings, positions: int | None = None) -> Renderer | None:
    """Return a renderer with the base's own template, for so many positions (None: its own); None
    for a base that is not on this machine or is wrong, which is said elsewhere."""
    from engines.chat import Chat
    from tasks.message_files.render_rows import Renderer

    length = positions or usable_positions(model_config(base) or {})
    if length is None:
        return None
    if base.random is not None:
        from tasks.base.random_model import write_chat_files

        with temporary_folder() as folder:
            write_chat_files(folder, base.random, [])
            # Its tokenizer is not trained yet: how long a row is, is not known.
            return Renderer(Chat.load(folder), sys.maxsize)
    folder = local_folder(str(base.folder))
    try:
        if folder is None:
            return None
        return Renderer(Chat.load(folder, template_text(base.template)), length)
    except InputError:
        return None


def seen_before_cautions(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Yield a sentence for each source of conversations that holds what a domain holds out."""
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


def _own_sources(plan: Sequence[PlannedStage]) -> Iterator[tuple[str, RowFiles, str]]:
    for stage in plan:
        spec = stage.spec
        advice = "hold out other rows, or leave these out of the data"
        if isinstance(spec, SftSpec):
            advice = f"set {stage.where}.decontaminate: 13, which leaves such rows out"
        if not (isinstance(spec, SftSpec) and spec.settings.decontaminate):
            for source in spec.message_files:
                yield f"{stage.where}.data", source, advice


def _sources_of_base(folder: str) -> Iterator[tuple[str, MessageFiles, str]]:
    """The conversations of the stages that made an artifact; none for another folder."""
    root, _, rest = folder.rpartition("/artifacts/")
    parts = rest.strip("/").split("/")
    if not root or len(parts) != 3:
        return
    try:
        artifacts = ArtifactStore(store_at(root))
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


def _said(source: RowFiles, domain: Domain) -> str:
    """Return how many of the domain's held-out questions the files ask, with the first; empty for
    none.
    """
    from curricula.prompt_files.contamination import HeldOutWords
    from curricula.prompt_files.prompt_curriculum import Files

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


def _questions(source: RowFiles) -> Iterator[tuple[str, str]]:
    """Yield what users say in the rows, with file and line; of large files as far as time goes."""
    from infra.data_files.chunks import LocalFiles
    from infra.data_files.files import find_files

    ends = time.monotonic() + _SECONDS
    with temporary_folder() as copies:
        files = LocalFiles(find_files(source.files), Path(copies))
        for chunk in files.chunks:
            rows = files.read(chunk)
            for index in range(len(rows)):
                if time.monotonic() > ends:
                    return
                try:
                    read = source.conversations(rows.row(index))[0]
                except BadRow:
                    continue
                where = f"{files.names[chunk.file]}:{rows.line(index)}"
                yield from ((where, m.content) for m in read.messages if m.role == "user")
