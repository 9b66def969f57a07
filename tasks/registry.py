"""The kinds of stage: each is a package `tasks.<kind>` with `spec.py` and `body.py`.

`sft`, `rl`, `opd` and `distill` stand in paths; `base` and `evaluate` begin and end every plan.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from typing import Any

from infra.errors import InputError
from tasks.base.spec import BaseSpec
from tasks.distill.spec import DistillSpec
from tasks.evaluate.spec import EvaluateSpec
from tasks.opd.spec import OpdSpec
from tasks.rl.spec import RlSpec
from tasks.sft.spec import SftSpec
from tasks.stage import StageContext, StageSpec

Body = Callable[[Any, StageContext], Coroutine[Any, Any, dict[str, float]]]

SPECS: dict[str, type[StageSpec]] = {
    spec.kind: spec for spec in (BaseSpec, SftSpec, RlSpec, DistillSpec, OpdSpec, EvaluateSpec)
}
PATH_KINDS = ("sft", "rl", "opd", "distill")


def spec_of(kind: str) -> type[StageSpec]:
    if kind not in SPECS:
        raise InputError(f"no stage of kind `{kind}`; known: {', '.join(SPECS)}")
    return SPECS[kind]


def module_of(kind: str) -> str:
    """The module whose import closure is the stage's code identity."""
    return f"tasks.{spec_of(kind).kind}.body"


def body_of(kind: str) -> Body:
    return importlib.import_module(module_of(kind)).run
