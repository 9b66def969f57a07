"""Checks of the model folders that a plan imports, before anything runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from flows.plan import BASE, PlannedStage
from infra.errors import StorageError
from tasks.model_folder.report import ModelReport, report_model
from tasks.served.folder import served_folder_problems


def folder_problems(plan: list[PlannedStage]) -> Iterator[str]:
    """Each as `base.folder: FOLDER/FILE: what is wrong; what to do`."""
    for where, folder in _served(plan):
        found = _served_report(folder)
        if not isinstance(found, StorageError):
            yield from (f"{where}: {line}" for line in found)
    for where, folder in _folders(plan):
        report = _report(folder)
        if isinstance(report, ModelReport):
            yield from (f"{where}: {line}" for line in report.problems)


def folder_cautions(plan: list[PlannedStage]) -> Iterator[str]:
    """What a folder holds that is not used, and folders that only their stage will see."""
    for where, folder in _served(plan):
        if isinstance(found := _served_report(folder), StorageError):
            yield f"{where}: its model is checked when its stage starts: {found}"
    for where, folder in _folders(plan):
        report = _report(folder)
        if isinstance(report, StorageError):
            yield f"{where}: its model is checked when its stage starts: {report}"
        else:
            yield from (f"{where}: {line}" for line in report.notes)


def model_report(folder: str) -> ModelReport | None:
    """What is known of a model folder; None for one that is out of reach."""
    report = _report(folder)
    return report if isinstance(report, ModelReport) else None


@functools.cache  # one look a command: a store far away takes seconds
def _report(folder: str) -> ModelReport | StorageError:
    try:
        return report_model(folder)
    except StorageError as error:
        return error


@functools.cache
def _served_report(folder: str) -> tuple[str, ...] | StorageError:
    try:
        return tuple(served_folder_problems(folder))
    except StorageError as error:
        return error


def _served(plan: list[PlannedStage]) -> Iterator[tuple[str, str]]:
    """Each folder of a model that only servers read."""
    for stage in plan:
        if stage.spec.served_folder is not None:
            yield stage.where, stage.spec.served_folder


def _folders(plan: list[PlannedStage]) -> Iterator[tuple[str, str]]:
    """Each folder to import, with its place in the recipe or in the flow's parameters."""
    for stage in plan:
        if stage.spec.imported_folder is not None:
            where = f"{BASE}.folder" if stage.where == BASE else stage.where
            yield where, stage.spec.imported_folder
