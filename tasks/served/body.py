"""`served`: copies the folder of a model that only servers read."""

from __future__ import annotations

import asyncio
from math import prod
from pathlib import Path

from infra.errors import InputError
from infra.hub import is_hub_name, snapshot
from tasks.model_folder.model_files import ModelFiles
from tasks.model_folder.read_tensors import stored_tensors, weight_files
from tasks.served.served_folder import add_head_bias, served_folder_problems
from tasks.served.spec import ServedSpec
from tasks.stage import StageContext

_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".py", "README.md", "LICENSE")
"""ends of the names of files to copy besides the weights"""


async def run(spec: ServedSpec, context: StageContext) -> dict[str, float]:
    """Fill `context.out`. Raises InputError that names every fault, StorageError."""
    parameters = await asyncio.to_thread(_copy, spec.settings.folder, context.out)
    return {"parameters": float(parameters)}


def _copy(url: str, folder: Path) -> int:
    if is_hub_name(url):
        url = str(snapshot(url))
    if problems := served_folder_problems(url):
        raise InputError("\n".join(problems))
    files = ModelFiles(url)
    texts = [name for name in files.sizes if name.endswith(_SUFFIXES)]
    for name in [*texts, *weight_files(files)]:
        files.copy(name, folder)
    add_head_bias(folder)
    return sum(prod(tensor.size) for tensor in stored_tensors(files).values())
