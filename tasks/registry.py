"""The kinds of stage: each is the module `tasks.<kind>` with a spec and a body `run`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from typing import Any

from infra.errors import InputError
from tasks.base import BaseSpec
from tasks.distill import DistillSpec
from tasks.evaluate import EvaluateSpec
from tasks.opd import OpdSpec
from tasks.rl import RlSpec
from tasks.sft import SftSpec
from tasks.stage import StageContext, StageSpec

Body = Callable[[Any, StageContext], Coroutine[Any, Any, dict[str, float]]]

SPECS: dict[str, type[StageSpec]] = {
    spec.kind: spec for spec in (BaseSpec, SftSpec, RlSpec, DistillSpec, OpdSpec, EvaluateSpec)
}


def spec_of(kind: str) -> type[StageSpec]:
    if kind not in SPECS:
        raise InputError(f"no stage of kind `{kind}`; known: {', '.join(SPECS)}")
    return SPECS[kind]


def module_of(kind: str) -> str:
    """The module whose import closure is the stage's code identity."""
    return f"tasks.{spec_of(kind).kind}"


def body_of(kind: str) -> Body:
    return importlib.import_module(module_of(kind)).run
