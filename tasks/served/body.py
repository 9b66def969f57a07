"""`served`: copies the folder of a model that only servers read.

What is wrong with it is found without loading its weights. Less is asked than of a model that is
trained: SGLang decides which families it serves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from engines.families.common.tensors import INDEX
from infra.errors import InputError
from infra.hub import is_hub_name, snapshot
from tasks.model_folder.folder_report import CHAT_FILES
from tasks.model_folder.model_files import ModelFiles
from tasks.model_folder.read_tensors import stored_tensors, weight_files
from tasks.served.spec import ServedSpec
from tasks.stage import StageContext

_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".py", "README.md", "LICENSE")
"""ends of the names of files to copy besides the weights"""


def served_folder_problems(url: str) -> list[str]:
    """Return the problems; each begins with the folder or the file. Raises StorageError if it is
    out of reach."""
    try:
        files = ModelFiles(url)
    except InputError as error:
        return [str(error)]
    problems: list[str] = []
    try:
        config_of(files)
    except InputError as error:
        problems.append(str(error))
    try:
        stored_tensors(files)
    except InputError as error:
        problems.append(str(error))
    from engines.chat import Chat

    with files.on_this_machine(CHAT_FILES) as folder:
        try:
            Chat.load(folder)
        except InputError as error:
            problems.append(str(error))
    return [f"{url.rstrip('/')}/{line}" for line in problems]


def config_of(files: ModelFiles) -> Mapping[str, Any]:
    """Read the folder's config.json. Raises InputError."""
    if "config.json" not in files.sizes:
        raise InputError("config.json: is missing; give an HF model folder")
    try:
        config: Any = json.loads(files.read("config.json"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"config.json: is not valid JSON: {error}; copy it again") from None
    if not isinstance(config, dict) or not config.get("architectures"):
        raise InputError("config.json: names no `architectures`, by which SGLang finds the model")
    return config


_WITH_BIAS = ("Qwen2ForSequenceClassification", "Qwen3ForSequenceClassification")
_FILE = "score-bias.safetensors"
_WEIGHT, _BIAS = "score.weight", "score.bias"


def add_head_bias(folder: Path) -> None:
    """Write it into a local copy of a model's folder, if the model needs and lacks it."""
    config = json.loads((folder / "config.json").read_text())
    tensors = stored_tensors(ModelFiles(str(folder)))
    if not {*_WITH_BIAS} & {*config["architectures"]} or _WEIGHT not in tensors:
        return
    if _BIAS in tensors:
        return
    import numpy as np
    from safetensors.numpy import save_file

    outputs = tensors[_WEIGHT].size[0]
    save_file({_BIAS: np.zeros(outputs, np.float32)}, folder / _FILE, metadata={"format": "pt"})
    file_of = {name: tensor.file for name, tensor in tensors.items()} | {_BIAS: _FILE}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_of}))


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
