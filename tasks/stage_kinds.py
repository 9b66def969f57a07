"""The kinds of stage: ours by name, and the user's own by dotted path.

Each of ours is a package `tasks.<kind>` with `spec.py` and `body.py`. Those of `PATH_KINDS` stand
in paths; `base` and `served` begin plans, `evaluate` and `lm_eval` end
them, and `replay` is a plan of its own. One of
the user's is a class `module:Class` with the body `run` beside it (docs/extend.md).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

from infra.errors import InputError
from infra.hooks import resolve
from tasks.admit.spec import AdmitSpec
from tasks.base.spec import BaseSpec
from tasks.distill.spec import DistillSpec
from tasks.evaluate.spec import EvaluateSpec
from tasks.lm_eval.spec import LmEvalSpec
from tasks.mid_training.spec import MidTrainingSpec
from tasks.mine.spec import MineSpec
from tasks.offline.spec import OfflineSpec
from tasks.opd.spec import OpdSpec
from tasks.preference.spec import PreferenceSpec
from tasks.replay.spec import ReplaySpec
from tasks.reward.spec import RewardSpec
from tasks.rl.spec import RlSpec
from tasks.rollout.spec import RolloutSpec
from tasks.screen.spec import ScreenSpec
from tasks.served.spec import ServedSpec
from tasks.sft.spec import SftSpec
from tasks.stage import StageContext, StageSpec

Body = Callable[[Any, StageContext], Coroutine[Any, Any, dict[str, float]]]

SPECS: dict[str, type[StageSpec]] = {
    spec.kind: spec
    for spec in (
        *(BaseSpec, AdmitSpec, ScreenSpec, SftSpec, RlSpec, DistillSpec, OpdSpec, RolloutSpec),
        *(MidTrainingSpec, OfflineSpec, PreferenceSpec, RewardSpec, MineSpec),
        *(EvaluateSpec, LmEvalSpec, ReplaySpec, ServedSpec),
    )
}
PATH_KINDS = (
    *("admit", "screen", "sft", "preference", "reward", "rl", "opd", "distill", "rollout"),
    *("offline", "mid_training", "mine"),
)
_KIND = re.compile(r"[a-z][a-z0-9]*")


def is_own(name: str) -> bool:
    """Return whether a kind is the user's own: `module:Class`."""
    return ":" in name


def spec_of(name: str) -> type[StageSpec]:
    """Return a kind's spec by its name. Raises InputError for one that is missing or no kind."""
    if name in SPECS:
        return SPECS[name]
    spec: Any = resolve("stage", name, dict.fromkeys(SPECS, ""))
    for fault in _faults(spec, name.partition(":")[0]):
        raise InputError(f"stage {name!r}: {fault}")
    return cast("type[StageSpec]", spec)


def name_of(spec: StageSpec) -> str:
    """Return what `spec_of` finds a spec's class by."""
    kind = type(spec)
    return spec.kind if SPECS.get(spec.kind) is kind else f"{kind.__module__}:{kind.__qualname__}"


def module_of(name: str) -> str:
    """The module whose import closure is the stage's code identity."""
    return name.partition(":")[0] if is_own(name) else f"tasks.{spec_of(name).kind}.body"


def body_of(name: str) -> Body:
    return importlib.import_module(module_of(name)).run


def _faults(spec: Any, module: str) -> list[str]:
    if not (isinstance(spec, type) and issubclass(spec, StageSpec)):
        return ["is no subclass of tasks.stage.StageSpec"]
    faults: list[str] = []
    kind: object = vars(spec).get("kind")
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        faults.append(f"its `kind` is {kind!r}; name it by small letters and digits, e.g. 'soup'")
    elif kind in SPECS:
        faults.append(f"its `kind` {kind!r} is one of Tributary's; choose another")
    if "settings" not in spec.model_fields:
        faults.append("has no field `settings`: what a recipe writes")
    if not inspect.iscoroutinefunction(getattr(importlib.import_module(module), "run", None)):
        faults.append(f"{module}.py has no `async def run(spec, context)`")
    return faults
