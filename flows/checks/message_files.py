"""Checks of the user's own files of messages: their first rows, rendered for the base."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from flows.checks.engines import model_config
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.data_files.bad_row import BadRow
from infra.errors import InputError, StorageError
from infra.processes.leftovers import temporary_folder
from tasks.base.spec import BaseSettings
from tasks.message_files.spec import MessageFiles
from tasks.model_folder.location import local_folder
from tasks.sft.spec import SftSpec

if TYPE_CHECKING:
    from tasks.message_files.rendering import Renderer

_ROWS, _FILES = 50, 20
"""rows of each file and files of each source that are looked at"""
_NAMED = 3


@dataclass(slots=True)
class _FirstRows:
    """What became of a source's first rows."""

    read: int = 0
    without_thought: int = 0
    """rows that show none, where the template opens one in every turn"""
    are_all: bool = True
    bad: Counter[str] = field(default_factory=Counter[str])
    named: list[str] = field(default_factory=list[str])
    choices: list[str] = field(default_factory=list[str])
    """where a folder holds more than what is read"""
    layouts: Counter[str] = field(default_factory=Counter[str])
    """rows by what they look like"""
    unread: set[str] = field(default_factory=set[str])
    """columns, and fields inside them, that nothing reads"""

    @property
    def said(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.bad.most_common())
        which = "all" if self.are_all else "the first"
        return f"{self.bad.total()} of {which} {self.read} rows ({reasons}): " + "; ".join(
            self.named[:_NAMED]
        )


def message_file_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Files that are missing or cannot be read, sources whose rows are mostly bad, and answers
    without thinking for a template that has no switch."""
    for stage in plan:
        if isinstance(stage.spec, SftSpec) and stage.spec.settings.nothink_share:
            # A random base has a template of ours, which has a switch.
            renderer = _renderer(recipe.base) if recipe.base.random is None else None
            try:
                if renderer is not None:
                    renderer.chat.require_thinking_switch()
            except InputError as error:
                yield f"{stage.where}.nothink_share: {error}"
    for where, source in _sources(plan):
        found = _first_rows(source, recipe.base)
        if isinstance(found, str):
            yield f"{where}.{found}"
        elif not found.read:
            yield f"{where}.files: {', '.join(source.files)} hold no row"
        elif _is_refused(found, source):
            yield f"{where}: cannot be trained on: {found.said}"


def message_file_cautions(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Parts of folders and columns that are not read; bad rows among the first, where the stage
    may still bear them."""
    for where, source in _sources(plan):
        found = _first_rows(source, recipe.base)
        if isinstance(found, str):
            continue
        yield from (f"{where}.files: {choice}" for choice in found.choices)
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


def _is_refused(found: _FirstRows, source: MessageFiles) -> bool:
    bad = found.bad.total()
    return 2 * bad > found.read or (found.are_all and bad > source.max_bad_share * found.read)


def _sources(plan: list[PlannedStage]) -> Iterator[tuple[str, MessageFiles]]:
    for stage in plan:
        sources = stage.spec.message_files
        for number, source in enumerate(sources):
            yield f"{stage.where}.data" + (f".{number}" if len(sources) > 1 else ""), source


def _first_rows(source: MessageFiles, base: BaseSettings) -> _FirstRows | str:
    return _read(source.model_dump_json(), base.model_dump_json())


@cache  # problems and cautions ask for the same
def _read(source_json: str, base_json: str) -> _FirstRows | str:
    source = MessageFiles.model_validate_json(source_json)
    try:
        return _looked_at(source, _renderer(BaseSettings.model_validate_json(base_json)))
    except (InputError, StorageError) as error:
        return str(error)


def _looked_at(source: MessageFiles, renderer: Renderer | None) -> _FirstRows:
    from curricula.rows.layouts import read_row
    from infra.data_files.chunks import first_rows
    from infra.data_files.files import choices_of, find_files

    files = find_files(source.files)
    found = _FirstRows(choices=choices_of(files))
    found.are_all = len(files) <= _FILES
    for file in files[:_FILES]:
        rows, are_all = first_rows(file, _ROWS)
        found.are_all &= are_all
        for index in range(len(rows)):
            found.read += 1
            try:
                conversation = read_row(rows.row(index), source.columns, source.format)
                if renderer is not None:
                    renderer.render(conversation)
                    found.without_thought += renderer.lacks_thought(conversation)
                found.layouts[conversation.layout] += 1
                found.unread |= conversation.unread
            except BadRow as error:
                found.bad[error.reason] += 1
                found.named.append(f"{file.name}:{rows.line(index)}: {error}")
    return found


def _renderer(base: BaseSettings) -> Renderer | None:
    """With the base's own template; None for a base that is not on this machine or is wrong, which
    is said elsewhere."""
    from engines.chat import Chat
    from tasks.message_files.rendering import Renderer

    config = model_config(base) or {}
    length = config.get("max_position_embeddings")
    if not isinstance(length, int):
        return None
    if base.random is not None:
        from tasks.base.random_model import write_chat_files

        with temporary_folder() as folder:
            write_chat_files(folder, base.random, [])
            # Its tokenizer is not trained yet: how long a row is, is not known.
            return Renderer(Chat.load(folder), sys.maxsize)
    folder = local_folder(str(base.folder))
    try:
        return Renderer(Chat.load(folder), length) if folder is not None else None
    except InputError:
        return None
