"""Imports the module of a part by dotted path, and says what is wrong with it."""

from __future__ import annotations

import importlib
import importlib.util

from flows.checks.trial.bounded_steps import IMPORT_SECONDS, Attempts


def imported(where: str, kind: str, name: str, attempts: Attempts) -> bool:
    """Import the module of a dotted path; what it prints by that is a caution."""
    module = name.partition(":")[0]
    if ":" not in name:
        return True
    attempts.observer.printed()
    fine, _ = attempts.call(
        where, f"importing {module}", lambda: _import(kind, name), IMPORT_SECONDS
    )
    if text := attempts.observer.printed().strip():
        attempts.cautions.append(
            f"hooks: {module}.py prints while it is imported ({text[:60]!r}), and would print"
            " in every job; remove the print"
        )
    return fine


def _import(kind: str, name: str) -> None:
    """As the part is found later; an error of the module itself keeps its own line."""
    from infra.hooks import resolve

    module = name.partition(":")[0]
    if importlib.util.find_spec(module.partition(".")[0]) is not None:
        importlib.import_module(module)
    resolve(kind, name, {})
