"""Which kind of part a name of the user's leads to."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

from flows.checks.contracts import Contract
from flows.checks.trial.parts import OfDomain
from infra.errors import InputError
from infra.hooks import check_options, resolve
from rewards.registry import framework_of

Kind: TypeAlias = Contract | OfDomain

CONTRACTS: Mapping[str, Contract] = {kind: kind for kind in get_args(Contract)}
OF_DOMAIN: Mapping[str, OfDomain] = {kind: kind for kind in get_args(OfDomain)}
_METHODS: Mapping[str, Kind] = {
    "run": "driver",
    "problems": "curriculum",
    "pick": "data-source",
    "keep": "group-filter",
    "keeps": "buffer",
    "__call__": "reward",
}
"""that only a class of this kind has"""
_ARGUMENTS: Mapping[str, Kind] = {
    "StepTokens": "advantage",
    "LossInputs": "loss",
    "Transcript": "reward",
}
"""the type of a function's argument, by which its kind is known"""
_WORDS: Mapping[str, Kind] = {
    "reward": "reward",
    "score": "reward",
    "advantage": "advantage",
    "advantages": "advantage",
    "loss": "loss",
}
"""a word in a function's name, by which its kind is known if nothing else shows it"""


def kind_named(kind: str) -> Kind:
    """Raises InputError for one that there is not."""
    if found := CONTRACTS.get(kind) or OF_DOMAIN.get(kind):
        return found
    kinds = ", ".join([*CONTRACTS, *OF_DOMAIN])
    raise InputError(f"test-hook: --kind is one of {kinds}; not {kind!r}")


def kind_of(name: str) -> Kind:
    """By a class's methods, or by the type of a function's argument. Raises InputError."""
    found: Any = resolve("hook", name, {})
    if inspect.isclass(found):
        for method, kind in _METHODS.items():
            if inspect.isfunction(getattr(found, method, None)):
                return kind
    else:
        check_options("hook", name, found, {})
        annotations = [str(a) for a in getattr(found, "__annotations__", {}).values()]
        for marker, kind in _ARGUMENTS.items():
            if any(marker in annotation for annotation in annotations):
                return kind
        names = _parameters(found)
        if names[:1] == ["transcript"] or framework_of(names):
            return "reward"
        words = re.findall(r"[a-z]+", name.rpartition(":")[2].lower())
        meant: set[Kind] = {_WORDS[word] for word in words if word in _WORDS}
        if len(meant) == 1:
            return meant.pop()
    raise InputError(
        f"test-hook: {name} does not show its kind: annotate a function's argument as `StepTokens`"
        " (an advantage), `LossInputs` (a loss) or `Transcript` (a reward), or give --kind with one"
        f" of {', '.join([*CONTRACTS, *OF_DOMAIN])}"
    )


def curriculum_beside(name: str) -> str:
    """The curriculum in the file of a user's part, if there is just one and it shows
    demonstrations without options; else `reasoning`."""
    if ":" not in name:
        return "reasoning"
    resolve("hook", name, {})
    module = sys.modules[name.partition(":")[0]]
    found: list[tuple[str, Any]] = [
        (attribute, part)
        for attribute, part in vars(module).items()
        if inspect.isclass(part) and part.__module__ == module.__name__
        if all(inspect.isfunction(getattr(part, m, None)) for m in ("problems", "demonstrations"))
    ]
    if len(found) != 1:
        return "reasoning"
    ((attribute, part),) = found
    try:
        return f"{module.__name__}:{attribute}" if part().demonstrations(1, 0) else "reasoning"
    except Exception:  # it is tried by itself, as a curriculum
        return "reasoning"


def _parameters(found: Any) -> list[str]:
    try:
        return list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return []
