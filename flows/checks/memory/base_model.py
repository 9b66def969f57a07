"""The shape of the model that a recipe starts from, as far as it can be known."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.families.common.registry import model_shape
from engines.memory.known_models import DENSE
from engines.memory.model_size import ModelSize, size_of
from flows.checks.engines import model_config
from infra.errors import InputError, StorageError
from tasks.base.spec import BaseSettings
from tasks.model_folder.files import ModelFiles
from tasks.served.folder import config_of


@dataclass(frozen=True, slots=True)
class BaseModel:
    size: ModelSize
    max_positions: int
    known_by_name: str = ""
    """the model's name, where its folder is out of reach and its shape is taken from that name"""


def base_model(base: BaseSettings) -> BaseModel | None:
    """None for a model of which nothing is known, or that the engines cannot train."""
    config, name = model_config(base), ""
    if config is None:
        name = _name_of(base.folder or "")
        config = DENSE.get(name)
    if config is None:
        return None
    try:
        shape = model_shape(config)
    except InputError:  # said elsewhere
        return None
    return BaseModel(size_of(shape), shape.max_positions, name)


def folder_model(folder: str) -> BaseModel | None:
    """Of a model that is only served: one whose family the engines train, or that is known by its
    folder's name."""
    config, name = served_config(folder), ""
    if config is None:
        name = _name_of(folder)
        config = DENSE.get(name)
    if config is None:
        return None
    try:
        shape = model_shape(config)
    except InputError:
        return None
    return BaseModel(size_of(shape), shape.max_positions, name)


@functools.cache  # one look a command: a store far away takes seconds
def served_config(folder: str) -> Mapping[str, Any] | None:
    """None of a folder that is out of reach."""
    try:
        return config_of(ModelFiles(folder))
    except (InputError, StorageError):
        return None


def _name_of(folder: str) -> str:
    """Example: "s3://models/Qwen3-4B/" -> "Qwen3-4B"."""
    return folder.rstrip("/").rpartition("/")[2].partition("@")[0]
