"""Tries parts that have a contract of their own: what an algorithm, or sampling, is made of."""

from __future__ import annotations

from flows.checks.contracts import faults_of
from flows.checks.trial.bounded_steps import IMPORT_SECONDS, Attempts
from flows.checks.trial.imported import imported
from flows.checks.trial.request import CustomPart


def try_custom(part: CustomPart, attempts: Attempts) -> None:
    if not imported(part.where, part.kind, part.path, attempts):
        return
    fine, faults = attempts.call(
        part.where,
        part.path,
        lambda: faults_of(
            part.kind,
            part.path,
            part.options,
            needs=part.needs,
            domains=part.domains,
            is_beside_training=part.is_beside_training,
        ),
        IMPORT_SECONDS,
    )
    for fault in faults if fine else ():
        attempts.problems.append(
            f"{part.where}: {part.path} breaks the contract: {fault.check}: {fault.saw}"
        )
