"""Tries custom advantages and losses against their contract."""

from __future__ import annotations

from flows.checks.trial.bounded_steps import IMPORT_SECONDS, Attempts
from flows.checks.trial.imported import imported
from flows.checks.trial.request import CustomPart


def try_custom(part: CustomPart, attempts: Attempts) -> None:
    from flows.command.hooks import hook_faults

    if not imported(part.where, part.kind, part.path, attempts):
        return
    fine, faults = attempts.call(
        part.where,
        part.path,
        lambda: hook_faults(part.kind, part.path, part.options, part.needs),
        IMPORT_SECONDS,
    )
    for check, saw in faults if fine else ():
        attempts.problems.append(f"{part.where}: {part.path} breaks the contract: {check}: {saw}")
