"""Finds a family by a config's `model_type`: the module of that name in `engines/families`.

A family is imported when it is asked for. So a stage's code identity holds the family of its model
and no other (`tasks/durable/stage_identity.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.families.common.family import Family, ModelShape
from infra.cuda import has_cuda
from infra.errors import InputError

_FOLDER = Path(__file__).resolve().parent.parent
_PACKAGE = __name__.rpartition(".common.")[0]
_MOST_PARTS = 100_000
"""layers, each counted once for every expert; the largest models that are known have 25,000"""


TEXT_OF = {"qwen3_5": "qwen3_5_text"}
"""families that also see images, and those of their text models, which `convert` writes"""
_WHY_NOT = dict.fromkeys(
    TEXT_OF, "it sees images; `tributary convert FOLDER NEW` writes its text model"
) | dict.fromkeys(
    ("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"),
    "delta nets are trained in dense models; these experts share one with a gate of its own",
)
"""what else is said where one refuses families that someone may well try"""


@functools.cache
def family_names() -> tuple[str, ...]:
    """Values of `model_type` that are supported."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("[!_]*.py")))


def family_modules() -> tuple[str, ...]:
    """Dotted names of all of them."""
    return tuple(f"{_PACKAGE}.{name}" for name in family_names())


def family_module(config: Mapping[str, Any]) -> str:
    """Dotted name of the module that describes this config's family. Raises InputError."""
    name = config.get("model_type")
    if name not in family_names():
        why = f": {_WHY_NOT[name]}" if isinstance(name, str) and name in _WHY_NOT else ""
        raise InputError(
            f"config.json: model_type {name!r} is not supported{why}; supported families:"
            f" {', '.join(family_names())}"
        )
    return f"{_PACKAGE}.{name}"


def family_of(config: Mapping[str, Any]) -> Family:
    """Raises InputError that names the families there are."""
    return import_module(family_module(config)).FAMILY


def all_families() -> dict[str, Family]:
    """By `model_type`."""
    return {name: family_of({"model_type": name}) for name in family_names()}


def served_families() -> dict[str, Family]:
    """Return the families that this host can serve, by `model_type`."""
    every = all_families().items()
    return {name: family for name, family in every if has_cuda() or not family.no_cpu_server}


def check_servable(config: Mapping[str, Any]) -> None:
    """Raise InputError if servers of the model need a GPU and this host has none, or a field and
    config.json has none. Families that are not trained may be served as well: of those SGLang
    knows."""
    name = config.get("model_type")
    if name not in family_names():
        return
    family = family_of(config)
    if (reason := family.no_cpu_server) and not has_cuda():
        raise InputError(
            f"SGLang serves a {name} on GPUs only: {reason}; run what samples or serves it on a"
            " host with a GPU, take another family, or train alone, which needs no server:"
            " `tributary sft --no-evaluate`"
        )
    if lacking := [key for key in family.served_keys if config.get(key) is None]:
        raise InputError(
            f"config.json: lacks {lacking[0]}, which SGLang reads and transformers does not write;"
            " write it as the model's makers published it"
        )


def check_reward_model(config: Mapping[str, Any]) -> None:
    """Raise InputError if transformers could not load a reward model of this family."""
    if family_of(config).classifier("SequenceClassification") is None:
        raise InputError(
            f"transformers has no sequence classifier of {config['model_type']}, so that nothing"
            " could load the reward model; take a base of another family for stages `reward`"
        )


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Read a config; raises InputError for a family or feature that is not supported, and for more
    layers than would fit into memory by their names."""
    shape = family_of(config).read_shape(config)
    experts = shape.mixture.num_experts if shape.mixture else 1
    if (parts := (shape.num_layers + shape.num_extra_layers) * experts) > _MOST_PARTS:
        raise InputError(
            f"config.json: describes {parts} layers, or experts in all layers; at most"
            f" {_MOST_PARTS} are read: copy the file again from a source that you trust"
        )
    return shape
