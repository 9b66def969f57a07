"""`tributary export`: a model as an HF folder that others can load and that says what it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from engines.chat import Chat
from engines.chat.folder import write_stops
from engines.families.common.config import read_config
from flows.command.find_artifact import NamedModel, find_named_model
from flows.command.models.card import (
    CARD,
    LINEAGE,
    UNKNOWN_LICENCE,
    card,
    licence_of,
    lineage_content,
)
from flows.command.models.lineage import lineage_of, origin_of
from infra.errors import CorruptArtifact
from infra.new_folder import new_folder, require_free

_TAKEN = (".json", ".jinja", ".txt", ".model", ".safetensors")
"""what a model is made of; records of how it was trained stay in the store"""
_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Exported:
    folder: Path
    bytes: int
    licence: str
    stops: tuple[str, ...]
    """tokens that end an answer, as generation_config.json and config.json list them"""


def export(artifact: str, folder: str, licence: str, root: str, console: Console) -> int:
    target = Path(folder).expanduser()
    require_free(target)  # before a model is fetched
    made = export_model(find_named_model(artifact, root), target, licence)
    console.print(
        f"{made.folder}: {made.bytes / 1e6:.1f} MB; transformers loads it; an answer ends with"
        f" {' or '.join(made.stops)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if made.licence == UNKNOWN_LICENCE:
        console.print("The card states no licence; --license ID names one.", markup=False)
    return 0


def export_model(model: NamedModel, folder: Path, licence: str = "") -> Exported:
    """Write the model to `folder`, which must not hold anything yet: all of it, or nothing.

    Raises InputError for a folder that is taken or cannot be written, CorruptArtifact for a model
    that transformers does not load whole.
    """
    named = licence or licence_of(model.folder)
    with new_folder(folder) as draft:
        _copy(model.folder, draft)
        chat = Chat.load(draft)
        write_stops(draft, chat.stop_token_ids)
        _describe(model, draft, folder.resolve().name, named)
        require_loadable(draft)
        size = _open_to_readers(draft)
    stops = tuple(chat.decode([token]) for token in chat.stop_token_ids)
    return Exported(folder, size, named, stops)


def require_loadable(folder: Path) -> None:
    """Raises CorruptArtifact unless transformers loads the tokenizer and every weight."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        AutoTokenizer.from_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", output_loading_info=True
        )
    except Exception as error:
        raise CorruptArtifact(
            f"transformers does not load the model: {type(error).__name__}: {error}. Nothing was"
            " written; delete the artifact and run its stage again"
        ) from error
    wrong = {kind: sorted(map(str, names)) for kind, names in loaded[1].items() if names}
    if wrong:
        raise CorruptArtifact(f"transformers loads the model, but {wrong}. Nothing was written")


def _copy(source: Path, draft: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and (path.suffix in _TAKEN or path.name.startswith("LICENSE")):
            shutil.copyfile(path, draft / path.name)


def _describe(model: NamedModel, draft: Path, name: str, licence: str) -> None:
    lineage, origin = [], origin_of(model)
    if model.record is not None and model.artifacts is not None:
        lineage = lineage_of(model.artifacts, model.record.kind, model.record.digest)
    content = lineage_content(lineage, origin)
    (draft / LINEAGE).write_text(json.dumps(content, indent=1) + "\n")
    (draft / CARD).write_text(card(name, read_config(draft), licence, lineage, origin))


def _open_to_readers(draft: Path) -> int:
    """Others may read it, whatever the umask; returns its size in bytes."""
    size = 0
    for path in draft.iterdir():
        path.chmod(_FILE_MODE)
        size += path.stat().st_size
    return size
