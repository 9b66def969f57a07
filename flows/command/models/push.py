"""`tributary push`: an exported model to a bucket or to a hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from flows.command.find_artifact import NamedModel, find_named_model
from flows.command.models.export import export_model
from infra.errors import InputError
from infra.hub import hub_name, is_hub_name
from infra.hub_upload import upload_model
from infra.store.store import Store


def push(artifact: str, to: str, licence: str, public: bool, root: str, console: Console) -> int:
    if not is_hub_name(to) and "://" not in to:
        raise InputError(f"{to}: push to s3://BUCKET/PREFIX or to hf:ORG/NAME; export to a folder")
    place = _push(find_named_model(artifact, root), to, licence, public)
    console.print(place, markup=False, highlight=False, soft_wrap=True)
    return 0


def _push(model: NamedModel, to: str, licence: str, public: bool) -> str:
    """Raises InputError for a place that is taken, before anything is written."""
    if not is_hub_name(to):
        _require_empty(to)
    name = (hub_name(to).repo if is_hub_name(to) else to.rstrip("/")).rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix="tributary-push-") as scratch:
        folder = export_model(model, Path(scratch) / name, licence).folder
        if is_hub_name(to):
            page = upload_model(folder, to, _message(model), is_public=public)
            return f"pushed to {page}"
        files = Store(to).upload_folder(folder, "")
    return f"pushed {len(files)} files to {to}"


def _require_empty(to: str) -> None:
    store = Store(to)
    if names := store.listdir(""):
        raise InputError(f"{to} already holds {', '.join(names[:3])}: push to an empty prefix")


def _message(model: NamedModel) -> str:
    return f"Upload {model.record.name if model.record else model.name}"
