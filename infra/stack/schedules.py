"""Registers the deployments of `prefect.yaml` with the local Prefect server, and keeps their
schedules.

To register a deployment switches off those schedules that `prefect.yaml` names, and deletes all of
them if one was made without a slug. So they are written down before, and restored after.

$TRIBUTARY_HOME/prefect/schedules.json    there from before a registration until all are restored
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from infra.code.digest import sha256_of
from infra.code.identity import code_identity
from infra.config import Config
from infra.errors import InfrastructureError, InputError
from infra.home import SOURCE_ROOT, home, write_whole
from infra.processes.children import log_tail
from infra.stack.prefect_server import ask
from infra.stack.record import Stack
from infra.stack.services import prefect_service_env, program


class Schedule(Config):
    """One schedule, as it was made."""

    deployment: str
    id: str
    slug: str | None
    """None: someone made it on the page without one"""
    active: bool
    schedule: dict[str, Any]
    parameters: dict[str, Any]
    max_scheduled_runs: int | None

    def is_same(self, other: Schedule) -> bool:
        """Return whether both are one schedule; it has a new id once it was deleted and
        restored."""
        if self.deployment != other.deployment or self.slug != other.slug:
            return False
        made, its = (self.schedule, self.parameters), (other.schedule, other.parameters)
        return self.slug is not None or self.id == other.id or made == its


class _Note(Config):
    database: str
    """that the schedules are in"""
    schedules: list[Schedule]


def note_schedules(stack: Stack) -> None:
    """Write down those that there are. What an interrupted registration left written down stays so
    unless it is there as it was: it may have switched it off or deleted it. Raises
    InfrastructureError when the server refuses it."""
    now = _schedules(_deployments(stack))
    lost = [
        noted
        for noted in _noted(stack)
        if not any(noted.is_same(each) and (each.active or each.slug is None) for each in now)
    ]
    known = [each for each in now if not any(each.is_same(noted) for noted in lost)]
    note = _Note(database=stack.database, schedules=[*lost, *known])
    write_whole(_path(), note.model_dump_json(indent=1))


def restore_schedules(stack: Stack) -> None:
    """Make again what is written down and gone, switch on what is off, and forget it. Raises
    InfrastructureError when the server refuses it."""
    noted = _noted(stack)
    deployments = _deployments(stack) if noted else []
    ids = {deployment["name"]: deployment["id"] for deployment in deployments}
    now = _schedules(deployments)
    for before in noted:
        if before.deployment in ids:
            found = next((each for each in now if before.is_same(each)), None)
            _restore(stack, f"/deployments/{ids[before.deployment]}/schedules", before, found)
    _path().unlink(missing_ok=True)


def _restore(stack: Stack, path: str, before: Schedule, now: Schedule | None) -> None:
    made = {"schedule": before.schedule, "parameters": before.parameters, "active": before.active}
    if now is None:
        more = {"slug": before.slug, "max_scheduled_runs": before.max_scheduled_runs}
        ask(stack, "POST", path, [{**made, **more}])
    elif before.active and before.slug is not None:  # registration touches no other that it leaves
        ask(stack, "PATCH", f"{path}/{now.id}", made)


def _deployments(stack: Stack) -> list[dict[str, Any]]:
    return ask(stack, "POST", "/deployments/filter", {}).json()


def _schedules(deployments: list[dict[str, Any]]) -> list[Schedule]:
    return [
        Schedule(
            deployment=deployment["name"], id=each["id"], slug=each["slug"] or None,
            active=each["active"], schedule=each["schedule"], parameters=each["parameters"],
            max_scheduled_runs=each["max_scheduled_runs"],
        )
        for deployment in deployments
        for each in deployment["schedules"]
    ]  # fmt: skip


def _noted(stack: Stack) -> list[Schedule]:
    try:
        note = _Note.model_validate_json(_path().read_text())
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise InputError(
            f"{_path()}, which names the schedules to restore, cannot be read:"
            f" {error.errors()[0]['msg']}. Delete it, run `tributary up` again, and look on"
            " Prefect's page whether your schedules are there and switched on"
        ) from error
    return note.schedules if note.database == stack.database else []


def _path() -> Path:
    return home() / "prefect" / "schedules.json"


DEPLOY_SECONDS = 240.0


def deploy(stack: Stack) -> None:
    """Register what `prefect.yaml` names, unless it and the flows' code are as last time."""
    path = SOURCE_ROOT / "prefect.yaml"
    if not path.exists():  # an installed wheel has flows but no deployments
        return
    fingerprint = f"{_fingerprint(path)} {stack.database} {bool(stack.job_template)}"
    # Beside Prefect's own database: who deletes one deletes both.
    note = home() / "prefect" / "deployed"
    if note.exists() and note.read_text() == fingerprint:
        restore_schedules(stack)  # of an `up` that was interrupted, and whose code is gone again
        return
    note_schedules(stack)
    log = home() / "logs" / "deploy.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                [program("prefect"), "--no-prompt", "deploy", "--all"],
                cwd=SOURCE_ROOT, env=prefect_service_env(stack, "deploy"), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, timeout=DEPLOY_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(
                f"the deployments were not registered within {DEPLOY_SECONDS:.0f} s; the log is "
                f"{log}. Run `tributary up` again"
            ) from error
    if done.returncode != 0:
        raise InfrastructureError(
            f"Prefect refused the deployments of {path}. Last lines of {log}:\n{log_tail(log)}\n"
            "Repair the cause and run `tributary up` again"
        )
    restore_schedules(stack)
    write_whole(note, fingerprint)


def _fingerprint(path: Path) -> str:
    """Changes with the file, the code that the flows' parameter schemas come from, and where it
    lies: a deployment names its folder."""
    deployments = yaml.safe_load(path.read_text())["deployments"]
    modules = sorted({d["entrypoint"].rsplit(".", 1)[0] for d in deployments})
    flows = code_identity(modules, root=path.parent).hash
    return f"{flows} {sha256_of(path)} {path.parent}"
