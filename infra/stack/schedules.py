"""The schedules that someone switched on: to register a deployment switches them off, so they are
written down before, and restored after.

$TRIBUTARY_HOME/prefect/schedules-on.json    there from before a registration until all are restored
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.config import Config
from infra.home import home
from infra.stack.prefect_server import ask
from infra.stack.record import Stack


class SwitchedOn(Config):
    """One schedule that is on, as it was made."""

    deployment: str
    slug: str
    schedule: dict[str, Any]
    parameters: dict[str, Any]


class _Note(Config):
    database: str
    """that the schedules are in"""
    schedules: list[SwitchedOn]


def note_schedules(stack: Stack) -> None:
    """Write down which are on now. Those that an interrupted registration left written down stay
    so: it may have switched them off. Raises InfrastructureError when the server refuses it."""
    on = {(each.deployment, each.slug): each for each in _noted(stack)}
    on |= {(each.deployment, each.slug): each for each in _switched_on(stack)}
    note = _Note(database=stack.database, schedules=list(on.values()))
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(note.model_dump_json(indent=1))
    draft.replace(path)


def restore_schedules(stack: Stack) -> None:
    """Switch on what is written down, as it was made, and forget it. Raises InfrastructureError
    when the server refuses it."""
    noted = {(each.deployment, each.slug): each for each in _noted(stack)}
    for deployment, schedule in _schedules(stack) if noted else ():
        if before := noted.get((deployment["name"], schedule["slug"])):
            path = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
            made = {"schedule": before.schedule, "parameters": before.parameters}
            ask(stack, "PATCH", path, {"active": True, **made})
    _path().unlink(missing_ok=True)


def _switched_on(stack: Stack) -> list[SwitchedOn]:
    return [
        SwitchedOn(
            deployment=deployment["name"], slug=schedule["slug"],
            schedule=schedule["schedule"], parameters=schedule["parameters"],
        )
        for deployment, schedule in _schedules(stack)
        if schedule["active"] and schedule["slug"]
    ]  # fmt: skip


def _schedules(stack: Stack) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each with its deployment."""
    deployments = ask(stack, "POST", "/deployments/filter", {}).json()
    return [(each, schedule) for each in deployments for schedule in each["schedules"]]


def _noted(stack: Stack) -> list[SwitchedOn]:
    try:
        note = _Note.model_validate_json(_path().read_text())
    except FileNotFoundError:
        return []
    return note.schedules if note.database == stack.database else []


def _path() -> Path:
    return home() / "prefect" / "schedules-on.json"
